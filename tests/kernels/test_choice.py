"""Which twin of a kernel runs."""

import torch

from gtmsm.kernels.choice import choose, forced


def test_a_cpu_gets_the_twin_for_cpus_where_there_is_one():
    here = torch.zeros(1)
    assert choose(here, cpu=True, triton=True) == "cpu"
    assert choose(here, triton=True) == "readable"


def test_a_twin_can_be_forced_and_is_let_go_again():
    here = torch.zeros(1)
    with forced("triton"):
        assert choose(here, cpu=True, triton=True) == "triton"
        with forced("readable"):
            assert choose(here, cpu=True, triton=True) == "readable"
    assert choose(here, cpu=True, triton=True) == "cpu"


def test_a_forced_twin_that_cannot_do_the_case_gives_way():
    with forced("triton"):
        assert choose(torch.zeros(1), cpu=True) == "readable"
    with forced("cpu"):
        assert choose(torch.zeros(1, device="meta"), cpu=True) == "readable"


def test_where_functions_are_transformed_the_readable_twin_runs():
    chosen = []
    torch.func.vmap(lambda x: chosen.append(choose(x, cpu=True, triton=True)) or x)(torch.zeros(2))
    assert chosen == ["readable"]
