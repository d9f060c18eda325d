"""Reads the pickle of a PyTorch checkpoint without running it.

A pickle is a program, and unpickling one from a stranger runs what the stranger wrote. So nothing
here calls ``pickle``: ``pickletools`` splits the bytes into opcodes, and the small machine below
knows only those that describe a dict of tensors. A global is a name in a table, never an import;
whatever is not in the table is an error. The number of opcodes is capped, and each makes at most
one small object, so memory is bounded too.
"""

import pickletools
from typing import Any, NamedTuple

from wkvm.errors import FormatError
from wkvm.formats.source import shown

#: A pickle spends about 35 opcodes on a tensor; the largest RWKV models have some 2,500 tensors.
_MAX_OPCODES = 500_000

#: Class of a storage in ``torch`` -> element type.
_STORAGES = {
    "DoubleStorage": "f64",
    "FloatStorage": "f32",
    "HalfStorage": "f16",
    "BFloat16Storage": "bf16",
    "LongStorage": "i64",
    "IntStorage": "i32",
    "ShortStorage": "i16",
    "CharStorage": "i8",
    "ByteStorage": "u8",
    "BoolStorage": "bool",
}
_ORDERED_DICT = ("collections", "OrderedDict")
_TENSOR = ("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = ("torch._utils", "_rebuild_parameter")
_GLOBALS = {_ORDERED_DICT, _TENSOR, _PARAMETER, *(("torch", name) for name in _STORAGES)}


class Storage(NamedTuple):
    """A flat run of `n` elements in the archive member ``data/<key>``."""

    dtype: str
    key: str
    n: int


class View(NamedTuple):
    """A tensor: a view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Global(NamedTuple):
    module: str
    name: str


class _Mark:
    """What MARK pushes: the start of a run of operands."""


def read_state_dict(data: bytes) -> dict[str, View]:
    """The tensors that a pickle made by ``torch.save`` describes, in its order.

    Raises:
        FormatError: the pickle is damaged, holds anything but a dict of tensors, or names a global
            that a checkpoint does not need.
    """
    try:
        top = _run(data)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        # The opcodes do not fit together; `error` speaks of this machine, not of the file.
        raise FormatError("the pickle is damaged") from error
    if not isinstance(top, dict):
        raise FormatError("the pickle is not a dict of tensors; save the model's state dict alone")
    for name, value in top.items():
        if not name.isprintable():
            raise FormatError(f"{shown(name)} is no name of a tensor")
        if not isinstance(value, View):
            raise FormatError(
                f"entry {shown(name)} is not a tensor: this looks like a training checkpoint; save "
                "the model's state dict alone"
            )
    return top


def _run(data: bytes) -> Any:
    """Interpret the opcodes; returns what STOP finds on the stack."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count == _MAX_OPCODES:
            raise FormatError(f"the pickle takes more than {_MAX_OPCODES} steps")
        match opcode.name:
            case "PROTO":
                if argument > 5:
                    raise ValueError("unknown protocol")
            case "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                stack.append(_Mark)
            case "NONE":
                stack.append(None)
            case "NEWTRUE":
                stack.append(True)
            case "NEWFALSE":
                stack.append(False)
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1":
                stack[-1:] = [_values(stack, 1)]
            case "TUPLE2":
                stack[-2:] = [_values(stack, 2)]
            case "TUPLE3":
                stack[-3:] = [_values(stack, 3)]
            case "TUPLE":
                stack.append(tuple(_pop_to_mark(stack)))
            case "EMPTY_LIST":
                stack.append([])
            case "APPEND":
                value = stack.pop()
                _expect(stack[-1], list).append(value)
            case "APPENDS":
                values = _pop_to_mark(stack)
                _expect(stack[-1], list).extend(values)
            case "EMPTY_DICT":
                stack.append({})
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(_expect(stack[-1], dict), [key, value])
            case "SETITEMS":
                items = _pop_to_mark(stack)
                _set_items(_expect(stack[-1], dict), items)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_find_global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_find_global(module, name))
            case "BINPERSID":
                stack.append(_load_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(function, arguments))
            case "BUILD":  # the attributes of an OrderedDict, such as a state dict's _metadata
                stack.pop()
                _expect(stack[-1], dict)
            case name:
                raise FormatError(
                    f"the pickle uses the instruction {name}, which no checkpoint needs"
                )
    raise ValueError("no STOP")


def _values(stack: list[Any], n: int) -> tuple[Any, ...]:
    values = tuple(stack[-n:])
    if len(values) < n or _Mark in values:
        raise ValueError("operands are missing")
    return values


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    values = []
    while (value := stack.pop()) is not _Mark:
        values.append(value)
    return values[::-1]


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _set_items(target: dict[Any, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str:  # hashing tuples nested deeply enough would end the process
            raise FormatError(
                "a key of the pickle is not a string: it is not a dict of tensors; save the "
                "model's state dict alone"
            )
        if key in target:
            raise FormatError(f"{shown(key)} appears twice")
        target[key] = value


def _find_global(module: str, name: str) -> _Global:
    if type(module) is not str or type(name) is not str or (module, name) not in _GLOBALS:
        raise FormatError(
            f"the pickle asks for {shown(module)}.{shown(name)}, which a checkpoint of plain "
            "tensors does not need: do not trust this file"
        )
    return _Global(module, name)


def _load_storage(identity: Any) -> Storage:
    """The storage of a persistent id, ``("storage", class, key, device, number of elements)``."""
    tag, kind, key, _, n = identity
    if tag != "storage" or not isinstance(kind, _Global) or not isinstance(key, str):
        raise TypeError("not the id of a storage")
    return Storage(_STORAGES[kind.name], key, _count(n))


def _call(function: Any, arguments: Any) -> Any:
    """What a REDUCE of an allowed global stands for."""
    if function == _ORDERED_DICT and arguments == ():
        return {}
    if function == _PARAMETER:
        return _expect(arguments[0], View)
    if function == _TENSOR:
        storage, offset, shape, strides = arguments[:4]
        return View(
            _expect(storage, Storage),
            _count(offset),
            tuple(map(_count, _expect(shape, tuple))),
            tuple(map(_count, _expect(strides, tuple))),
        )
    raise TypeError("not callable")


def _count(value: Any) -> int:
    """A number of elements, 0 to 2**63 - 1."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("not a number of elements")
    return value
