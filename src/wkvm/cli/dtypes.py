"""The types of the big matrices that commands take, and those that they turn into."""

from typing import Literal, get_args

#: What ``--dtype`` takes; auto: as stored.
Dtype = Literal["auto", "fp32", "fp16", "bf16", "int8"]

#: What a model is made of.
DTYPES: tuple[str, ...] = get_args(Dtype)[1:]
