"""Options of the commands that load a model to generate with it."""

from typing import Annotated, Literal

import typer

from wkvm.cli.dtypes import Dtype

Vocab = Annotated[
    str | None,
    typer.Option(
        help="A vocabulary file, 'world', or 'bytes'; else the model's own, or by its size."
    ),
]
MatrixType = Annotated[Dtype, typer.Option(help="Type of the big matrices; auto: as stored.")]
Threads = Annotated[
    int | None, typer.Option(help="Threads; else the physical cores of this process.")
]
Policy = Annotated[
    Literal["full", "moba", "window", "memory"], typer.Option(help="What attention sees (RWKV-X).")
]
MaxCacheLen = Annotated[
    int | None, typer.Option(help="Tokens that the KV cache may hold; else 65,536.")
]
KvType = Annotated[Literal["fp16", "fp32"], typer.Option(help="Type of the KV cache.")]
