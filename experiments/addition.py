"""A pretrained language model learns two-digit addition by group policy optimisation.

Question: how far does GRPO take SmolLM2-135M-Instruct, which adds two-digit numbers
right about once in 200 times, on a laptop CPU?
Expectation: from 0.5 % to 70 % and more of held-out sums, greedy, in 40 steps.
Difference to the paper (DeepSeekMath): clip .2/.28, no KL term, embeddings frozen;
half credit for right digits of a wrong sum (accuracy counts exact sums only).

  python -m experiments.addition
  python -m experiments.addition --resume
  python -m experiments.addition --folder runs/dapo --recipe gpo.recipes.dapo
  python -m experiments.addition --help
"""

import dataclasses
import pathlib

import jax
import numpy as np
import optax

import gpo
from gpo import cli, train
from gpo.models import decoder
from gpo.models import load as models
from gpo.tasks import base
from gpo.train import log, screen


def grpo(low: float = 0.2, high: float = 0.28, kl: float = 0.0) -> gpo.Recipe:
    """GRPO with DAPO's clip."""
    return gpo.recipes.grpo(low, high, kl)


@dataclasses.dataclass(frozen=True)
class Config:
    # smollm2-135m, a Hugging Face folder or hub id, a GGUF file; tiny: from scratch
    model: str = "smollm2-135m"
    # dotted path of a function that makes a recipe
    recipe: str = "experiments.addition.grpo"
    # its keyword arguments as JSON, such as '{"high": 0.3}'
    recipe_args: str = ""
    # dotted path of a function that makes a task; it gets tokenizer= where it takes it
    task: str = "gpo.tasks.arithmetic.addition"
    # its keyword arguments as JSON, such as '{"digits": 3}'
    task_args: str = ""
    # problems held out for the evaluations
    held_out: int = 200
    # prompts a step
    prompts: int = 16
    # rollouts of each prompt
    rollouts: int = 8
    # most new tokens of a rollout
    length: int = 4
    # training steps
    steps: int = 40
    # passes over the rollouts of a step
    epochs: int = 1
    # updates a pass
    minibatches: int = 1
    # parts of a minibatch whose gradients are added up, to save memory
    microbatches: int = 1
    # of AdamW, at the start
    learning_rate: float = 2e-5
    # share of it that is left at the last step; it falls on a cosine
    final_rate: float = 0.1
    # decay of AdamW's second moment
    b2: float = 0.99
    # of AdamW
    weight_decay: float = 0.0
    # gradients of a larger norm are scaled down to it
    clip_norm: float = 1.0
    # also train the embeddings
    embeddings: bool = False
    # of parameters and activations: float32 or bfloat16
    dtype: str = "float32"
    # samples for pass@k in the evaluations, besides the greedy answer
    samples: int = 8
    # problems evaluated at once
    evaluation_batch: int = 40
    # steps between evaluations; 0: only before and after
    evaluate_every: int = 0
    # steps between checkpoints
    save_every: int = 20
    # steps between tables of rollouts
    show_every: int = 5
    # of prompts, rollouts, the held-out split and a model from scratch
    seed: int = 0
    # where the run goes
    folder: str = "runs/addition"
    # go on with the run in the folder
    resume: bool = False
    # also write the metrics for TensorBoard, into the folder (extra: track)
    tensorboard: bool = False
    # also send the metrics to this project at Weights & Biases (extra: track)
    wandb: str = ""


def load(config: Config):
    """(model, parameters, their fingerprint, task)."""
    if config.model == "tiny":
        task = cli.make(config.task, config.task_args)
        vocabulary = int(max(np.max(task.prompts), *task.stop)) + 1
        model = decoder.decoder(decoder.tiny(vocabulary, dtype=config.dtype))
        return model, model.init(jax.random.key(config.seed)), "", task
    found = models.load(config.model, config.dtype)
    task = cli.make(config.task, config.task_args, tokenizer=found.tokenizer)
    return found.model, found.params, found.fingerprint, task


def main(config: Config) -> dict:
    cli.cache_programs()
    model, params, weights, task = load(config)
    task, held_out = base.split(task, config.held_out, config.seed)
    recipe = cli.make(config.recipe, config.recipe_args)
    print(f"{config.model}, {len(task.length)} problems\n{gpo.describe(recipe)}")
    optimiser = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            optax.cosine_decay_schedule(
                config.learning_rate, max(config.steps, 1), config.final_rate
            ),
            b2=config.b2,
            weight_decay=config.weight_decay,
        ),
    )
    step = train.make_step(
        model, recipe, task, optimiser,
        prompts=config.prompts, rollouts=config.prompts * config.rollouts,
        length=config.length, epochs=config.epochs, minibatches=config.minibatches,
        microbatches=config.microbatches,
        trainable=lambda path: config.embeddings or "embed" not in path,
    )  # fmt: skip
    k_train, k_test = jax.random.split(jax.random.key(config.seed))

    def evaluate(params):
        return train.evaluate(
            model, params, held_out, key=k_test, length=config.length,
            samples=config.samples, batch=config.evaluation_batch,
        ).summary()  # fmt: skip

    settings = dataclasses.asdict(config) | {"resume": False}
    trackers = [train.track.tensorboard(config.folder)] if config.tensorboard else []
    if config.wandb:
        trackers.append(train.track.wandb(project=config.wandb, config=settings))
    state = train.fit(
        step, step.init(params, k_train, reference=params),
        steps=config.steps, folder=config.folder, task=task, evaluate=evaluate,
        about=train.about(model, recipe, task, weights=weights, config=settings),
        resume=config.resume, again=train.command(), save_every=config.save_every,
        show_every=config.show_every, evaluate_every=config.evaluate_every,
        trackers=trackers,
    )  # fmt: skip
    folder = pathlib.Path(config.folder)
    result = log.outcome(log.read(folder / "metrics.jsonl"))
    if int(state.step) >= config.steps:
        log.write_json(folder / "result.json", result)
        print(screen.outcome(result), f"Run folder: {folder}", sep="\n")
    return result


if __name__ == "__main__":
    main(cli.parse(Config))
