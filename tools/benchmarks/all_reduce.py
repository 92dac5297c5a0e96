#!/usr/bin/env python3
"""Microseconds of NCCL's all-reduce of rows of 2,880 BF16 values, through PyTorch, one after the other in a CUDA graph, a process a
GPU. Beside it: `cuda_exchange_test --gtest_filter=RankExchange.Speed`, the exchange that moesaic's ranks use.

    python3 tools/benchmarks/all_reduce.py [GPUS]        all GPUs of this machine without a number; needs PyTorch with CUDA"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

WIDTH, ROWS, IN_A_GRAPH, REPLAYS = 2880, (1, 8, 64, 512, 2048), 100, 20


def timed(rows, device):
    """One graph's all-reduces; the first replays warm up."""
    values = torch.zeros(rows, WIDTH, dtype=torch.bfloat16, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            dist.all_reduce(values)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / (REPLAYS * IN_A_GRAPH)


def measure(rank, gpus, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=device)
    for rows in ROWS:
        seconds = timed(rows, device)
        if rank == 0:
            print(f"NCCL, {gpus} GPUs, {rows} rows: {seconds * 1e6:.1f} us an all-reduce", flush=True)
    dist.destroy_process_group()


def main():
    gpus = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    if gpus < 2 or gpus > torch.cuda.device_count():
        sys.exit(f"{gpus} GPUs: two or more of this machine's {torch.cuda.device_count()} are needed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(measure, (gpus, port), nprocs=gpus)


if __name__ == "__main__":
    main()
