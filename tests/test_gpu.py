"""The checks for an accelerator (see gpu_checks.py); the CPU runs those that make sense there."""

from __future__ import annotations

import gpu_checks
import pytest
import torch

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@CUDA
def test_greedy_on_cuda() -> None:
    assert gpu_checks.greedy_equals_transformers("cuda") > 100


@pytest.mark.gpu
@CUDA
def test_seeds_on_cuda() -> None:
    assert gpu_checks.seeds_give_the_text_of_the_cpu("cuda") == 10


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_on_cuda(dtype: torch.dtype) -> None:
    assert gpu_checks.ratio_rules_run("cuda", dtype) == 5


@pytest.mark.gpu
@CUDA
def test_a_step_waits_once_for_the_device() -> None:
    assert max(gpu_checks.synchronisations("cuda").values()) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_on_the_cpu(dtype: torch.dtype) -> None:
    assert gpu_checks.ratio_rules_run("cpu", dtype) == 5


def test_the_checks_themselves_run_on_a_cpu() -> None:
    assert gpu_checks.seeds_give_the_text_of_the_cpu("cpu") == 10
