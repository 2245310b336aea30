"""The nearest of many keys in a few dimensions against a distance matrix and a selection, in the same run."""

import pytest
import torch

from gtmsm.kernels.search.nearest import nearest_k

AT_LEAST = 8
MOST_BYTES = 64 * 2**20


def walk(batch, n, m, axes, device="cpu"):
    """Keys and queries anywhere."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, count, axes, generator=generator).to(device) for count in (n, m)]


def by_matrix(keys, queries, k, exactly=False):
    """PyTorch, left to itself, multiplies many keys, which is faster and less exact."""
    how = "donot_use_mm_for_euclid_dist" if exactly else "use_mm_for_euclid_dist_if_necessary"
    return torch.cdist(queries, keys, compute_mode=how).topk(k, dim=-1, largest=False).indices


def distance2(keys, queries, index):
    """How far the entries found are, in float64."""
    rows = torch.arange(len(keys), device=keys.device)[:, None, None]
    return (queries.double()[:, :, None] - keys.double()[rows, index]).square().sum(-1)


def in_milliseconds(function):
    """Of the fastest of a few calls, on the GPU's own clock."""
    function()
    took = []
    for _ in range(5):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        function()
        ended.record()
        ended.synchronize()
        took.append(began.elapsed_time(ended))
    return min(took)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a GPU")
def test_on_a_gpu_a_search_of_many_keys_is_several_times_faster_and_needs_little_memory(benchmark, capsys):
    k, (keys, queries) = 4, walk(32, 100_000, 150, 4, "cuda")
    nearest_k(keys, queries, k)  # compiles
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = nearest_k(keys, queries, k)
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= MOST_BYTES
    matrix = by_matrix(keys, queries, k, exactly=True)
    torch.testing.assert_close(distance2(keys, queries, found), distance2(keys, queries, matrix), rtol=1e-6, atol=0)

    def search():
        nearest_k(keys, queries, k)
        torch.cuda.synchronize()

    benchmark.pedantic(search, rounds=20, warmup_rounds=2)
    if benchmark.disabled:
        return
    slow, fast = (in_milliseconds(lambda s=search: s(keys, queries, k)) for search in (by_matrix, nearest_k))
    benchmark.extra_info.update(matrix_milliseconds=slow, milliseconds=fast, ratio=slow / fast, taken=taken)
    with capsys.disabled():
        print(
            f"\n{k} nearest of 100,000 keys to 150 queries in 32 memories of 4 axes: matrix and selection "
            f"{slow:.1f} ms, gtmsm {fast:.2f} ms, {slow / fast:.0f} times faster (at least {AT_LEAST} asked for), "
            f"{taken / 2**20:.1f} MiB of memory"
        )
    assert slow / fast >= AT_LEAST


def test_on_a_cpu_a_search_of_the_size_of_an_update_finds_the_same(compare):
    k, (keys, queries) = 5, walk(16, 256, 32, 2)
    found, matrix = nearest_k(keys, queries, k), by_matrix(keys, queries, k, exactly=True)
    torch.testing.assert_close(distance2(keys, queries, found), distance2(keys, queries, matrix), rtol=1e-6, atol=0)
    compare(
        f"{k} nearest of 256 keys to 32 queries in 16 memories of 2 axes", "matrix and selection",
        lambda: by_matrix(keys, queries, k), lambda: nearest_k(keys, queries, k), tries=20,
    )  # fmt: skip
