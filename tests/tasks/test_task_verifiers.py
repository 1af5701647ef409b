"""Answer extraction and comparison."""

from fractions import Fraction as F

import pytest

from gpo.tasks import gsm8k, verifiers

TEXTS = [
    ("the answer is 42.", 42),
    ("$1,250.50 in all", F(2501, 2)),
    ("1,234,567", 1234567),
    ("it is -3", -3),
    ("it is −3°", -3),
    ("-$3 or $-4", -4),
    ("x=-5", -5),
    ("10-7", 7),
    ("(8)-2", 2),
    ("a half: 1/2", F(1, 2)),
    (r"\frac{3}{4} of it", F(3, 4)),
    ("on 1/0", 0),
    ("0.5%", F(1, 2)),
    (".25", F(1, 4)),
    ("7.", 7),
    ("007", 7),
    (r"\$1{,}000", 1000),
    ("#### 7 apples, not 8", 7),
    ("#### 5\n#### 6", 6),
    ("#### none, 4", 4),
    ("#### many", None),
    (r"\boxed{12} and 13", 12),
    (r"\boxed{x = \frac{1}{2}}", F(1, 2)),
    (r"#### 3 \boxed{4\text{ m}^2", 4),
    (r"\boxed{}", None),
    ("nothing", None),
    ("", None),
]


@pytest.mark.parametrize("text, number", TEXTS)
def test_final_number(text, number):
    assert verifiers.final_number(text) == number


def test_same_number():
    assert verifiers.same_number("= 18.00 dollars", "18") == 1
    assert verifiers.same_number("= 18.01", "18") == 0
    assert verifiers.same_number("no idea", "18") == 0
    assert verifiers.same_number("1450", "1,450") == 1


def test_answers_in_one_spelling():
    assert gsm8k.answer("so 2.50") == gsm8k.answer("#### 5/2") == "5/2"
    assert gsm8k.answer("so what") is None


def test_tagged():
    text = "<answer>1</answer> no: <answer>\n two </answer> <answer>"
    assert verifiers.tagged(text) == "two"
    assert verifiers.tagged(" plain ") == "plain"
