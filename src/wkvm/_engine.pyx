# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The engine over wkvm.h: handles, zero-copy NumPy, the interpreter lock released."""

from operator import index as as_index
from os import fsencode

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport PyObject, Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc

cimport numpy as cnp
import numpy as np

from wkvm import errors

cnp.import_array()

cdef extern from "wkvm.h" nogil:
    ctypedef int wkvm_status
    wkvm_status wkvm_last_error(const char** out)


cdef int check(wkvm_status status) except -1:
    """Raise the error class of a failed status, with the calling thread's last message."""
    cdef const char* message
    if status == 0:
        return 0
    wkvm_last_error(&message)
    raise errors.BY_STATUS[status](message.decode("utf-8", "replace"))


# ---------------------------------------------------------------- files

cdef extern from "wkvm.h" nogil:
    ctypedef struct wkvm_tensor:
        const char* name
        uint32_t dtype
        uint32_t n_dims
        uint64_t shape[8]
        const void* data
        uint64_t n_bytes
    ctypedef struct wkvm_file:
        pass
    wkvm_status wkvm_file_open(const char* path, wkvm_file** out)
    wkvm_status wkvm_file_free(wkvm_file* file)
    wkvm_status wkvm_file_tensor_count(const wkvm_file* file, size_t* out)
    wkvm_status wkvm_file_tensor(const wkvm_file* file, size_t index, wkvm_tensor* out)
    wkvm_status wkvm_file_metadata_count(const wkvm_file* file, size_t* out)
    wkvm_status wkvm_file_metadata(const wkvm_file* file, size_t index, const char** key,
                                   const char** value)
    wkvm_status wkvm_file_evict(const wkvm_file* file, size_t index)

#: Names of the element types, by their number in wkvm.h.
DTYPES = ("f32", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64", "f64", "bool", "i16", "u16")


cdef bytes path_bytes(path):
    """The path as the C interface takes it."""
    encoded = fsencode(path)
    if b"\0" in encoded:
        raise errors.InvalidArgumentError(f"the path {path!r} holds a zero byte")
    return encoded


cdef bytes name_bytes(name):
    """A tensor's name as the C interface takes it."""
    encoded = name.encode("utf-8", "surrogatepass")
    if b"\0" in encoded:
        raise errors.FormatError(f"the tensor name {name!r} holds a zero byte")
    return encoded


cdef tuple describe(const wkvm_tensor* tensor):
    """(name, element type, shape) of a tensor."""
    shape = tuple([tensor.shape[i] for i in range(tensor.n_dims)])
    return tensor.name.decode("utf-8"), DTYPES[tensor.dtype], shape


cdef object view_bytes(const wkvm_tensor* tensor, object owner):
    """The bytes of a tensor, read-only uint8 [n_bytes], in place; they keep `owner` alive."""
    cdef cnp.npy_intp n_bytes = <cnp.npy_intp>tensor.n_bytes
    array = cnp.PyArray_SimpleNewFromData(1, &n_bytes, cnp.NPY_UINT8, <void*>tensor.data)
    cnp.set_array_base(array, owner)
    array.flags.writeable = False
    return array


cdef class SafetensorsFile:
    """A .safetensors file, mapped read-only; every byte of its header is checked."""

    cdef wkvm_file* file

    def __cinit__(self, path):
        cdef bytes encoded = path_bytes(path)
        cdef const char* raw = encoded
        cdef wkvm_status status
        with nogil:
            status = wkvm_file_open(raw, &self.file)
        check(status)

    def __dealloc__(self):
        wkvm_file_free(self.file)

    def tensors(self):
        """(name, element type, shape) of every tensor, in the order of their data."""
        cdef size_t n
        cdef size_t i
        cdef wkvm_tensor tensor
        check(wkvm_file_tensor_count(self.file, &n))
        described = []
        for i in range(n):
            check(wkvm_file_tensor(self.file, i, &tensor))
            described.append(describe(&tensor))
        return described

    def metadata(self):
        """The entries of ``__metadata__``."""
        cdef size_t n
        cdef size_t i
        cdef const char* key
        cdef const char* value
        check(wkvm_file_metadata_count(self.file, &n))
        entries = {}
        for i in range(n):
            check(wkvm_file_metadata(self.file, i, &key, &value))
            entries[key.decode("utf-8")] = value.decode("utf-8")
        return entries

    def read(self, size_t index):
        """The bytes of tensor `index`, uint8 [n], in place."""
        cdef wkvm_tensor tensor
        check(wkvm_file_tensor(self.file, index, &tensor))
        return view_bytes(&tensor, self)

    def evict(self, size_t index):
        """Let the kernel drop the resident pages of tensor `index`; reading brings them back."""
        check(wkvm_file_evict(self.file, index))

# ---------------------------------------------------------------- sampler

cdef extern from "wkvm.h" nogil:
    ctypedef struct wkvm_sampler_options:
        uint32_t struct_size
        uint32_t order
        double temperature
        double top_p
        double min_p
        uint64_t top_k
        double presence_penalty
        double frequency_penalty
        double repetition_penalty
        double penalty_decay
        const uint32_t* bias_ids
        const double* biases
        size_t n_biases
        const uint32_t* banned_ids
        size_t n_banned
        const uint32_t* exempt_ids
        size_t n_exempt
    ctypedef struct wkvm_sampler:
        pass
    wkvm_status wkvm_sampler_new(uint32_t n_vocab, const wkvm_sampler_options* options,
                                 uint64_t seed, const char* isa, wkvm_sampler** out)
    wkvm_status wkvm_sampler_free(wkvm_sampler* sampler)
    wkvm_status wkvm_sampler_set_options(wkvm_sampler* sampler,
                                         const wkvm_sampler_options* options)
    wkvm_status wkvm_sampler_get_options(const wkvm_sampler* sampler, wkvm_sampler_options* out)
    wkvm_status wkvm_sampler_set_generator(wkvm_sampler* sampler, uint64_t seed, uint64_t index)
    wkvm_status wkvm_sampler_get_generator(const wkvm_sampler* sampler, uint64_t* seed,
                                           uint64_t* index)
    wkvm_status wkvm_sampler_clear_counts(wkvm_sampler* sampler)
    wkvm_status wkvm_sampler_sample(wkvm_sampler* sampler, const float* logits, size_t logits_len,
                                    uint32_t* token)
    wkvm_status wkvm_sampler_accept(wkvm_sampler* sampler, uint32_t token)
    wkvm_status wkvm_sampler_probabilities(wkvm_sampler* sampler, const float* logits,
                                           size_t logits_len, uint32_t* ids, float* probabilities,
                                           size_t capacity, size_t* n_candidates)
    wkvm_status wkvm_sampler_adjust(wkvm_sampler* sampler, const float* logits, size_t logits_len,
                                    float* out, size_t out_len)
    wkvm_status wkvm_sampler_logprobs(wkvm_sampler* sampler, const float* logits,
                                      size_t logits_len, uint32_t token, float* logprob,
                                      uint32_t* top_ids, float* top_logprobs, size_t n_top)
    wkvm_status wkvm_sampler_export_size(const wkvm_sampler* sampler, size_t* out)
    wkvm_status wkvm_sampler_export(const wkvm_sampler* sampler, void* data, size_t n_bytes)
    wkvm_status wkvm_sampler_import(wkvm_sampler* sampler, const void* data, size_t n_bytes)

#: Names of the sampling orders, by their number in wkvm.h.
SAMPLING_ORDERS = ("rwkv", "openai")


cdef uint64_t integer_below(limit, value, name) except? 0:
    """`value` as an integer from 0 up to, not including, `limit`."""
    try:
        number = as_index(value)
    except TypeError as error:
        raise errors.InvalidArgumentError(f"{name} is {value!r}; it must be an integer") from error
    if not 0 <= number < limit:
        raise errors.InvalidArgumentError(
            f"{name} is {number}; it must be from 0 to {limit - 1}")
    return number


cdef tuple fill_sampler_options(wkvm_sampler_options* c, options):
    """Write an options object into the C struct; the result owns the arrays it points into."""
    biases = sorted(options.logit_bias.items())
    cdef cnp.ndarray bias_ids = np.array([token for token, _ in biases], dtype=np.uint32)
    cdef cnp.ndarray bias_values = np.array([bias for _, bias in biases], dtype=np.float64)
    cdef cnp.ndarray banned = np.array(sorted(options.banned), dtype=np.uint32)
    cdef cnp.ndarray exempt = np.array(sorted(options.exempt), dtype=np.uint32)
    c.struct_size = sizeof(wkvm_sampler_options)
    c.order = one_of(SAMPLING_ORDERS, options.order, "order")
    c.temperature = options.temperature
    c.top_p = options.top_p
    c.min_p = options.min_p
    c.top_k = integer_below(1 << 64, options.top_k, "top_k")
    c.presence_penalty = options.presence_penalty
    c.frequency_penalty = options.frequency_penalty
    c.repetition_penalty = options.repetition_penalty
    c.penalty_decay = options.penalty_decay
    c.bias_ids = <const uint32_t*>cnp.PyArray_DATA(bias_ids)
    c.biases = <const double*>cnp.PyArray_DATA(bias_values)
    c.n_biases = len(biases)
    c.banned_ids = <const uint32_t*>cnp.PyArray_DATA(banned)
    c.n_banned = banned.size
    c.exempt_ids = <const uint32_t*>cnp.PyArray_DATA(exempt)
    c.n_exempt = exempt.size
    return bias_ids, bias_values, banned, exempt


cdef class Sampler:
    """Chooses tokens from logits [V]; docs/sampling.md is the definition.

    A sampler belongs to one thread at a time. Its state is its options, the counts of the tokens
    that it accepted, and its generator: a seed, and the index of the next token.

    Args:
        n_vocab: V.
        options: an object with the fields of ``SamplingOptions`` that bear on the choice.
        seed: 64 bits that start the generator.
        isa: instruction set; None as everywhere. Every set gives the same bits.

    Raises:
        InvalidArgumentError: an option out of range, or a token that the vocabulary lacks.
        UnsupportedError: an instruction set that this machine or build lacks.
    """

    cdef wkvm_sampler* sampler
    cdef readonly uint32_t n_vocab

    def __cinit__(self, n_vocab, options, *, seed, isa=None):
        cdef wkvm_sampler_options c
        cdef tuple arrays = fill_sampler_options(&c, options)
        cdef bytes name = b"" if isa is None else isa.encode()
        self.n_vocab = <uint32_t>integer_below(1 << 32, n_vocab, "n_vocab")
        check(wkvm_sampler_new(self.n_vocab, &c, integer_below(1 << 64, seed, "seed"), name,
                               &self.sampler))

    def __dealloc__(self):
        wkvm_sampler_free(self.sampler)

    cdef const float* logits(self, array) except NULL:
        """The data of an array that must be float32 [V]."""
        if not (isinstance(array, np.ndarray) and array.dtype == np.float32
                and array.shape == (self.n_vocab,) and array.flags.c_contiguous
                and array.flags.aligned):
            raise errors.InvalidArgumentError(
                f"logits must be a contiguous float32 array [{self.n_vocab}]")
        return <const float*>cnp.PyArray_DATA(array)

    @property
    def options(self):
        """The options that bear on the choice, by the names of ``SamplingOptions``."""
        cdef wkvm_sampler_options c
        c.struct_size = sizeof(wkvm_sampler_options)
        check(wkvm_sampler_get_options(self.sampler, &c))
        return {
            "order": SAMPLING_ORDERS[c.order],
            "temperature": c.temperature,
            "top_p": c.top_p,
            "top_k": c.top_k,
            "min_p": c.min_p,
            "presence_penalty": c.presence_penalty,
            "frequency_penalty": c.frequency_penalty,
            "repetition_penalty": c.repetition_penalty,
            "penalty_decay": c.penalty_decay,
            "logit_bias": {c.bias_ids[i]: c.biases[i] for i in range(c.n_biases)},
            "banned": tuple([c.banned_ids[i] for i in range(c.n_banned)]),
            "exempt": tuple([c.exempt_ids[i] for i in range(c.n_exempt)]),
        }

    def set_options(self, options):
        """Replace the options; counts and generator stay.

        Raises:
            InvalidArgumentError: as the constructor; the sampler is as it was.
        """
        cdef wkvm_sampler_options c
        cdef tuple arrays = fill_sampler_options(&c, options)
        check(wkvm_sampler_set_options(self.sampler, &c))

    @property
    def generator(self):
        """(seed, index of the next token): what a draw depends on besides its distribution."""
        cdef uint64_t seed
        cdef uint64_t position
        check(wkvm_sampler_get_generator(self.sampler, &seed, &position))
        return seed, position

    def set_generator(self, seed, index=0):
        """Start the generator again with `seed`, or put it at any index of that seed's sequence."""
        check(wkvm_sampler_set_generator(self.sampler, integer_below(1 << 64, seed, "seed"),
                                         integer_below(1 << 64, index, "index")))

    def clear_counts(self):
        """Forget which tokens were generated, as the penalties see it."""
        check(wkvm_sampler_clear_counts(self.sampler))

    def sample(self, logits):
        """The token that the current state draws from float32 logits [V]; the state stays.

        Raises:
            InvalidArgumentError: logits of another type or shape; every token banned.
            NumericError: a logit that is NaN or +inf.
        """
        cdef const float* data = self.logits(logits)
        cdef uint32_t token
        cdef wkvm_status status
        with nogil:
            status = wkvm_sampler_sample(self.sampler, data, self.n_vocab, &token)
        check(status)
        return token

    def accept(self, token):
        """Count `token` as generated, and move the generator on.

        Raises:
            InvalidArgumentError: a token that the vocabulary lacks.
        """
        cdef uint32_t accepted = <uint32_t>integer_below(self.n_vocab, token, "token")
        check(wkvm_sampler_accept(self.sampler, accepted))

    def probabilities(self, logits):
        """The distribution that ``sample`` draws from.

        Returns:
            The candidates, uint32 [n] ascending, and their probabilities, float32 [n].

        Raises:
            InvalidArgumentError, NumericError: as ``sample``.
        """
        cdef const float* data = self.logits(logits)
        cdef cnp.ndarray ids = np.empty(self.n_vocab, dtype=np.uint32)
        cdef cnp.ndarray values = np.empty(self.n_vocab, dtype=np.float32)
        cdef uint32_t* ids_data = <uint32_t*>cnp.PyArray_DATA(ids)
        cdef float* values_data = <float*>cnp.PyArray_DATA(values)
        cdef size_t n
        cdef wkvm_status status
        with nogil:
            status = wkvm_sampler_probabilities(self.sampler, data, self.n_vocab, ids_data,
                                                values_data, self.n_vocab, &n)
        check(status)
        return ids[:n].copy(), values[:n].copy()

    def adjusted(self, logits):
        """The logits after penalties, biases and bans, before any cut: float32 [V].

        Raises:
            InvalidArgumentError, NumericError: as ``sample``.
        """
        cdef const float* data = self.logits(logits)
        cdef cnp.ndarray out = np.empty(self.n_vocab, dtype=np.float32)
        check(wkvm_sampler_adjust(self.sampler, data, self.n_vocab,
                                  <float*>cnp.PyArray_DATA(out), self.n_vocab))
        return out

    def logprobs(self, logits, token, n_top=0):
        """Log-softmax of the logits as they are: no penalty, bias, cut or temperature.

        Returns:
            That of `token`; the ids of the `n_top` largest, uint32 [n_top], descending, equal
            ones in order of their ids; and theirs, float32 [n_top].

        Raises:
            InvalidArgumentError: as ``sample``; `token` or `n_top` beyond the vocabulary.
            NumericError: as ``sample``.
        """
        cdef const float* data = self.logits(logits)
        cdef uint32_t chosen = <uint32_t>integer_below(self.n_vocab, token, "token")
        cdef size_t n = integer_below(self.n_vocab + 1, n_top, "n_top")
        cdef cnp.ndarray ids = np.empty(n, dtype=np.uint32)
        cdef cnp.ndarray values = np.empty(n, dtype=np.float32)
        cdef uint32_t* ids_data = <uint32_t*>cnp.PyArray_DATA(ids)
        cdef float* values_data = <float*>cnp.PyArray_DATA(values)
        cdef float logprob
        cdef wkvm_status status
        with nogil:
            status = wkvm_sampler_logprobs(self.sampler, data, self.n_vocab, chosen, &logprob,
                                           ids_data, values_data, n)
        check(status)
        return logprob, ids, values

    def export_state(self):
        """Options, counts and generator as bytes, the same on every machine."""
        cdef size_t n
        check(wkvm_sampler_export_size(self.sampler, &n))
        cdef bytes state = PyBytes_FromStringAndSize(NULL, n)
        check(wkvm_sampler_export(self.sampler, PyBytes_AS_STRING(state), n))
        return state

    def import_state(self, bytes state not None):
        """Take over what ``export_state`` gave; on any error the sampler is as it was.

        Raises:
            FormatError: bytes that are not such a state, or a damaged one.
            StateMismatchError: a state of another vocabulary size.
            UnsupportedError: a state of another version.
        """
        check(wkvm_sampler_import(self.sampler, PyBytes_AS_STRING(state), len(state)))

# ---------------------------------------------------------------- models

cdef extern from "wkvm.h" nogil:
    uint32_t WKVM_DTYPE_AUTO
    wkvm_status wkvm_isa_list(const char** out)
    wkvm_status wkvm_isa_resolve(const char* name, const char** out)
    wkvm_status wkvm_default_threads(uint32_t* out)
    ctypedef struct wkvm_model_options:
        uint32_t struct_size
        uint32_t dtype
    ctypedef struct wkvm_model_info:
        uint32_t struct_size
        uint32_t family
        uint32_t dtype
        uint32_t is_packed
        uint64_t n_embd
        uint64_t head_size
        uint64_t n_ffn
        uint64_t n_vocab
        uint64_t n_rwkv
        uint64_t n_attn
        uint64_t n_unused
        uint64_t n_params
        uint64_t bytes_per_token
        uint64_t recurrent_state_bytes
        uint64_t kv_values_per_token
    ctypedef struct wkvm_model:
        pass
    ctypedef struct wkvm_builder:
        pass
    wkvm_status wkvm_model_open(const char* path, const wkvm_model_options* options,
                                wkvm_model** out)
    wkvm_status wkvm_model_free(wkvm_model* model)
    wkvm_status wkvm_model_get_info(const wkvm_model* model, wkvm_model_info* out)
    wkvm_status wkvm_model_block_order(const wkvm_model* model, const char** out)
    wkvm_status wkvm_model_tensor_count(const wkvm_model* model, size_t* out)
    wkvm_status wkvm_model_tensor(const wkvm_model* model, size_t index, wkvm_tensor* out)
    wkvm_status wkvm_model_packed_header(const wkvm_model* model, const char** out)
    wkvm_status wkvm_builder_new(const wkvm_tensor* tensors, size_t n_tensors,
                                 const wkvm_model_options* options, wkvm_builder** out)
    wkvm_status wkvm_builder_free(wkvm_builder* builder)
    wkvm_status wkvm_builder_get_info(const wkvm_builder* builder, wkvm_model_info* out)
    wkvm_status wkvm_builder_block_order(const wkvm_builder* builder, const char** out)
    wkvm_status wkvm_builder_needs(const wkvm_builder* builder, size_t index, uint32_t* out)
    wkvm_status wkvm_builder_add(wkvm_builder* builder, size_t index, const void* data,
                                 uint64_t n_bytes)
    wkvm_status wkvm_builder_finish(wkvm_builder* builder, wkvm_model** out)

#: Names of the families, by their number in wkvm.h.
FAMILIES = ("rwkv7", "rwkvx")
#: Names of the types of weights, by their number in wkvm.h.
WEIGHT_DTYPES = ("fp32", "fp16", "bf16", "int8")


def isa_list():
    """Instruction sets that this machine and build can run, best first."""
    cdef const char* names
    check(wkvm_isa_list(&names))
    return names.decode().split(",")


def isa_resolve(name=None):
    """The set that `name` selects; None: ``$WKVM_ISA``, or else the best.

    Raises:
        UnsupportedError: an unknown set, or one that this machine or build lacks.
    """
    cdef bytes encoded = b"" if name is None else name.encode()
    cdef const char* resolved
    check(wkvm_isa_resolve(encoded, &resolved))
    return resolved.decode()


def default_threads():
    """Physical cores that this process may use."""
    cdef uint32_t n
    check(wkvm_default_threads(&n))
    return n


cdef object one_of(names, value, what):
    """The index of `value` in `names`."""
    if value not in names:
        raise errors.InvalidArgumentError(
            f"{what} is {value!r}; it must be one of {', '.join(names)}")
    return names.index(value)


cdef wkvm_model_options model_options(dtype) except *:
    cdef wkvm_model_options options
    options.struct_size = sizeof(wkvm_model_options)
    options.dtype = WKVM_DTYPE_AUTO
    if dtype != "auto":
        options.dtype = one_of((*WEIGHT_DTYPES, "auto"), dtype, "dtype")
    return options


cdef dict info_dict(const wkvm_model_info* info, const char* block_order):
    return {
        "family": FAMILIES[info.family],
        "dtype": WEIGHT_DTYPES[info.dtype],
        "is_packed": bool(info.is_packed),
        "block_order": block_order.decode(),
        "n_embd": info.n_embd,
        "head_size": info.head_size,
        "n_ffn": info.n_ffn,
        "n_vocab": info.n_vocab,
        "n_rwkv": info.n_rwkv,
        "n_attn": info.n_attn,
        "n_unused": info.n_unused,
        "n_params": info.n_params,
        "bytes_per_token": info.bytes_per_token,
        "recurrent_state_bytes": info.recurrent_state_bytes,
        "kv_values_per_token": info.kv_values_per_token,
    }


cdef class Model:
    """An immutable model: packed weights, shared by every engine made of it."""

    cdef wkvm_model* model

    def __init__(self):
        raise TypeError("use Model.open or ModelBuilder.finish")

    @staticmethod
    def open(path, dtype="auto"):
        """Open one .safetensors file: a converted one is mapped in place, any other is packed.

        Raises:
            FileError, FormatError, UnsupportedError: the file cannot be opened, is not what it
                claims to be, or is a model that wkvm does not run.
            InvalidArgumentError: a `dtype` other than auto or the one of a converted file.
        """
        cdef bytes encoded = path_bytes(path)
        cdef const char* raw = encoded
        cdef wkvm_model_options options = model_options(dtype)
        cdef Model self = Model.__new__(Model)
        cdef wkvm_status status
        with nogil:
            status = wkvm_model_open(raw, &options, &self.model)
        check(status)
        return self

    def __dealloc__(self):
        wkvm_model_free(self.model)

    def info(self):
        """What ``wkvm_model_info`` says, and the order of the blocks."""
        cdef wkvm_model_info info
        cdef const char* block_order
        info.struct_size = sizeof(wkvm_model_info)
        check(wkvm_model_get_info(self.model, &info))
        check(wkvm_model_block_order(self.model, &block_order))
        return info_dict(&info, block_order)

    def packed_header(self):
        """The value of the metadata entry ``wkvm.packed`` of a converted file."""
        cdef const char* header
        check(wkvm_model_packed_header(self.model, &header))
        return header.decode()

    def tensors(self):
        """(name, element type, shape, bytes in place) of the packed tensors, in name order."""
        cdef size_t n
        cdef size_t i
        cdef wkvm_tensor tensor
        check(wkvm_model_tensor_count(self.model, &n))
        packed = []
        for i in range(n):
            check(wkvm_model_tensor(self.model, i, &tensor))
            packed.append((*describe(&tensor), view_bytes(&tensor, self)))
        return packed


cdef class ModelBuilder:
    """Packs canonical tensors, one at a time, into a model.

    Args:
        tensors: (name, element type, shape) of every tensor of a checkpoint.
        dtype: type of the big matrices: fp32, fp16, bf16, int8, or auto: as stored.

    Raises:
        FormatError: a tensor is missing, surplus, or of the wrong shape.
        UnsupportedError: a family or element type that wkvm does not run.
    """

    cdef wkvm_builder* builder

    def __cinit__(self, tensors, dtype="auto"):
        cdef wkvm_model_options options = model_options(dtype)
        cdef size_t n = len(tensors)
        encoded = [name_bytes(name) for name, _, _ in tensors]
        cdef cnp.ndarray buffer = np.zeros(max(n, 1) * sizeof(wkvm_tensor), dtype=np.uint8)
        cdef wkvm_tensor* descriptions = <wkvm_tensor*>cnp.PyArray_DATA(buffer)
        cdef size_t i
        cdef size_t d
        for i in range(n):
            name, element_type, shape = tensors[i]
            if len(shape) > 8:
                raise errors.FormatError(f"tensor {name} has {len(shape)} dimensions")
            descriptions[i].name = <const char*><bytes>encoded[i]
            descriptions[i].dtype = one_of(DTYPES, element_type, f"the type of tensor {name}")
            descriptions[i].n_dims = len(shape)
            for d in range(len(shape)):
                descriptions[i].shape[d] = integer_below(1 << 63, shape[d], f"a side of {name}")
        check(wkvm_builder_new(descriptions, n, &options, &self.builder))

    def __dealloc__(self):
        wkvm_builder_free(self.builder)

    def info(self):
        """What the model will be; nothing need have been added."""
        cdef wkvm_model_info info
        cdef const char* block_order
        info.struct_size = sizeof(wkvm_model_info)
        check(wkvm_builder_get_info(self.builder, &info))
        check(wkvm_builder_block_order(self.builder, &block_order))
        return info_dict(&info, block_order)

    def needs(self, size_t index):
        """Whether the model has any use for tensor `index`."""
        cdef uint32_t needed
        check(wkvm_builder_needs(self.builder, index, &needed))
        return bool(needed)

    def add(self, size_t index, const unsigned char[::1] data):
        """Pack the bytes of tensor `index`; they may go as soon as this returns.

        Raises:
            FormatError: a value that is not finite, or does not fit the type asked for.
            InvalidArgumentError: too few or too many bytes.
        """
        cdef uint64_t n_bytes = data.shape[0]
        cdef const void* start = &data[0] if n_bytes else NULL
        cdef wkvm_status status
        with nogil:
            status = wkvm_builder_add(self.builder, index, start, n_bytes)
        check(status)

    def finish(self):
        """The model; the builder is empty afterwards.

        Raises:
            InvalidArgumentError: a needed tensor was never added.
        """
        cdef Model model = Model.__new__(Model)
        check(wkvm_builder_finish(self.builder, &model.model))
        return model


# ---------------------------------------------------------------- engine

cdef extern from "wkvm.h" nogil:
    ctypedef struct wkvm_engine_options:
        uint32_t struct_size
        uint32_t n_slots
        uint32_t n_threads
        uint32_t kv_dtype
        uint32_t policy
        uint32_t reserved
        uint64_t max_cache_len
        uint64_t moba_chunk_size
        uint64_t moba_topk
        uint64_t window_sinks
        uint64_t window_size
        uint64_t memory_keep_tokens
        double memory_keep_ratio
        const char* isa
    ctypedef struct wkvm_engine_info:
        uint32_t struct_size
        uint32_t n_slots
        uint32_t n_slots_used
        uint32_t n_threads
        const char* isa
        uint64_t slot_bytes
        uint64_t n_forward
        uint64_t n_tokens
        uint64_t forward_nanoseconds
    ctypedef struct wkvm_engine:
        pass
    ctypedef struct wkvm_row:
        uint32_t slot
        uint32_t logits
        const uint32_t* tokens
        size_t n_tokens
    wkvm_status wkvm_engine_new(wkvm_model* model, const wkvm_engine_options* options,
                                wkvm_engine** out)
    wkvm_status wkvm_engine_free(wkvm_engine* engine)
    wkvm_status wkvm_engine_get_info(const wkvm_engine* engine, wkvm_engine_info* out)
    wkvm_status wkvm_forward(wkvm_engine* engine, const wkvm_row* rows, size_t n_rows,
                             float* logits, size_t logits_len)
    wkvm_status wkvm_slot_acquire(wkvm_engine* engine, uint32_t* out)
    wkvm_status wkvm_slot_release(wkvm_engine* engine, uint32_t slot)
    wkvm_status wkvm_slot_reset(wkvm_engine* engine, uint32_t slot)
    wkvm_status wkvm_slot_copy(wkvm_engine* engine, uint32_t source, uint32_t target)
    wkvm_status wkvm_slot_n_tokens(const wkvm_engine* engine, uint32_t slot, uint64_t* out)
    wkvm_status wkvm_slot_is_spoilt(const wkvm_engine* engine, uint32_t slot, uint32_t* out)
    wkvm_status wkvm_slot_logits(wkvm_engine* engine, uint32_t slot, float* logits,
                                 size_t logits_len)
    wkvm_status wkvm_slot_tensor_count(const wkvm_engine* engine, uint32_t slot, size_t* out)
    wkvm_status wkvm_slot_tensor(const wkvm_engine* engine, uint32_t slot, size_t index,
                                 wkvm_tensor* out)
    wkvm_status wkvm_slot_export(const wkvm_engine* engine, uint32_t slot, size_t index,
                                 void* data, uint64_t n_bytes)
    wkvm_status wkvm_slot_import(wkvm_engine* engine, uint32_t slot, uint64_t n_tokens,
                                 const wkvm_tensor* tensors, size_t n_tensors)

#: Names of the attention policies, by their number in wkvm.h.
POLICIES = ("full", "moba", "window", "memory")
#: Names of the types of KV, by their number in wkvm.h.
KV_DTYPES = ("fp32", "fp16")
#: What a row gives back, by its number in wkvm.h.
LOGITS = ("none", "last", "all")
_KV_ELEMENTS = {"f32": np.float32, "f16": np.float16}


cdef cnp.ndarray as_tokens(tokens):
    """Token ids of any integer type as a contiguous uint32 array, in place if they are one."""
    cdef cnp.ndarray ids
    cdef uint32_t* data
    cdef Py_ssize_t i = 0
    cdef cnp.npy_intp n
    if cnp.PyArray_Check(tokens):
        if (cnp.PyArray_TYPE(tokens) == cnp.NPY_UINT32 and cnp.PyArray_NDIM(tokens) == 1
                and cnp.PyArray_ISCARRAY_RO(tokens)):
            return tokens
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise errors.InvalidArgumentError(
                f"tokens are {tokens.dtype} {list(tokens.shape)}; they must be integers in one "
                "dimension")
        if tokens.size and not (0 <= tokens.min() and tokens.max() < 1 << 32):
            raise errors.InvalidArgumentError("tokens must be from 0 to 2^32 - 1")
        return np.ascontiguousarray(tokens, dtype=np.uint32)
    try:
        tokens = tuple(tokens)  # nobody can change its length while it is read
    except TypeError as error:
        raise errors.InvalidArgumentError(
            f"tokens are {tokens!r}; they must be a sequence of integers") from error
    n = len(tokens)
    ids = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT32)
    data = <uint32_t*>cnp.PyArray_DATA(ids)
    for token in tokens:
        if type(token) is int and 0 <= token <= 0xFFFFFFFF:
            data[i] = <uint32_t>token
        else:
            data[i] = <uint32_t>integer_below(1 << 32, token, "a token")
        i += 1
    return ids


def token_array(tokens):
    """Token ids of any integer type as a contiguous uint32 array, in place if they are one.

    Raises:
        InvalidArgumentError: not a sequence of integers from 0 to 2^32 - 1.
    """
    return as_tokens(tokens)


cdef class Engine:
    """A model with slots on the CPU; implements ``backends.base.Backend``.

    Its methods may be called from any thread: they take turns. The path of a decode step is kept
    short, because the weights that stream through the caches leave nothing of it there.
    """

    cdef wkvm_engine* engine
    cdef readonly Model model
    cdef readonly size_t n_vocab
    cdef PyThread_type_lock turn
    cdef unsigned long turn_owner  # the thread whose turn it is, or 0
    cdef list abandoned

    def __cinit__(self, Model model not None, *, n_slots, threads, kv_dtype, policy,
                  max_cache_len, moba_chunk_size=2048, moba_topk=3, window_sinks=4,
                  window_size=2048, memory_keep_tokens=128, memory_keep_ratio=0.0, isa=None):
        cdef wkvm_engine_options options
        cdef bytes isa_name = b"" if isa is None else isa.encode()
        cdef wkvm_status status
        options.struct_size = sizeof(wkvm_engine_options)
        options.n_slots = integer_below(1 << 32, n_slots, "n_slots")
        options.n_threads = integer_below(1 << 32, threads, "threads")
        options.kv_dtype = one_of(KV_DTYPES, kv_dtype, "kv_dtype")
        options.policy = one_of(POLICIES, policy, "policy")
        options.reserved = 0
        options.max_cache_len = integer_below(1 << 63, max_cache_len, "max_cache_len")
        options.moba_chunk_size = integer_below(1 << 63, moba_chunk_size, "moba_chunk_size")
        options.moba_topk = integer_below(1 << 63, moba_topk, "moba_topk")
        options.window_sinks = integer_below(1 << 63, window_sinks, "window_sinks")
        options.window_size = integer_below(1 << 63, window_size, "window_size")
        options.memory_keep_tokens = integer_below(1 << 63, memory_keep_tokens,
                                                   "memory_keep_tokens")
        options.memory_keep_ratio = memory_keep_ratio
        options.isa = isa_name
        self.model = model
        self.n_vocab = model.info()["n_vocab"]
        self.abandoned = []
        self.turn = PyThread_allocate_lock()
        if self.turn == NULL:
            raise errors.OutOfMemoryError("no memory for a lock")
        with nogil:
            status = wkvm_engine_new(model.model, &options, &self.engine)
        check(status)

    def __dealloc__(self):
        wkvm_engine_free(self.engine)
        if self.turn != NULL:
            PyThread_free_lock(self.turn)

    cdef int enter(self) except -1:
        """Wait for this thread's turn, and release what finalizers have left behind."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if not PyThread_acquire_lock(self.turn, NOWAIT_LOCK):
            if self.turn_owner == me:
                raise errors.InvalidArgumentError(
                    "the engine was called from inside one of its own calls, by a finalizer or a "
                    "signal handler: call it after that call has returned")
            with nogil:
                PyThread_acquire_lock(self.turn, WAIT_LOCK)
        self.turn_owner = me
        while self.abandoned:
            wkvm_slot_release(self.engine, <uint32_t>self.abandoned.pop())
        return 0

    cdef void leave(self) noexcept:
        self.turn_owner = 0
        PyThread_release_lock(self.turn)

    def info(self):
        """What ``wkvm_engine_info`` says: slots, threads, instruction set, and its counters."""
        cdef wkvm_engine_info info
        info.struct_size = sizeof(wkvm_engine_info)
        self.enter()
        try:
            check(wkvm_engine_get_info(self.engine, &info))
        finally:
            self.leave()
        return {
            "n_slots": info.n_slots,
            "n_slots_used": info.n_slots_used,
            "n_threads": info.n_threads,
            "isa": info.isa.decode(),
            "slot_bytes": info.slot_bytes,
            "n_forward": info.n_forward,
            "n_tokens": info.n_tokens,
            "forward_nanoseconds": info.forward_nanoseconds,
        }

    def forward(self, rows, str logits, out=None):
        """Run ragged rows; see ``wkvm_forward``.

        Args:
            rows: (slot, tokens) pairs.
            logits: one of ``LOGITS``, for every row.
            out: contiguous float32 array of as many elements as the rows give, or None.

        Returns:
            float32 [logits rows, V], `out` itself if it was given.

        Raises:
            InvalidArgumentError, CacheFullError: nothing has changed.
            NumericError: see ``wkvm_forward``.
        """
        cdef uint32_t wanted
        cdef tuple fixed = tuple(rows)  # nobody can change it while it is read
        cdef size_t n_rows = len(fixed)
        cdef size_t n_tokens = 0
        cdef size_t n_logits
        cdef size_t i
        cdef wkvm_row one
        cdef wkvm_row* c_rows = &one
        cdef float* data
        cdef cnp.ndarray ids
        cdef wkvm_status status
        if logits == "last":
            wanted = 1
        elif logits == "none":
            wanted = 0
        elif logits == "all":
            wanted = 2
        else:
            raise errors.InvalidArgumentError(
                f"logits is {logits!r}; it must be one of {', '.join(LOGITS)}")
        arrays = [as_tokens(tokens) for _, tokens in fixed]
        if n_rows != 1:
            c_rows = <wkvm_row*>PyMem_Malloc(max(n_rows, 1) * sizeof(wkvm_row))
            if c_rows == NULL:
                raise errors.OutOfMemoryError(f"no memory for {n_rows} rows")
        try:
            for i in range(n_rows):
                ids = arrays[i]
                c_rows[i].slot = fixed[i][0]
                c_rows[i].logits = wanted
                c_rows[i].tokens = <const uint32_t*>cnp.PyArray_DATA(ids)
                c_rows[i].n_tokens = ids.shape[0]
                n_tokens += <size_t>ids.shape[0]
            n_logits = n_tokens if wanted == 2 else wanted * n_rows
            if out is None:
                out = np.empty((n_logits, self.n_vocab), dtype=np.float32)
            elif not (cnp.PyArray_Check(out) and cnp.PyArray_TYPE(out) == cnp.NPY_FLOAT32
                      and cnp.PyArray_ISCARRAY(out)
                      and <size_t>cnp.PyArray_SIZE(out) == n_logits * self.n_vocab):
                raise errors.InvalidArgumentError(
                    f"out must be a contiguous, writeable float32 array of {n_logits} x "
                    f"{self.n_vocab} elements")
            data = <float*>cnp.PyArray_DATA(out)
            self.enter()
            try:
                with nogil:
                    status = wkvm_forward(self.engine, c_rows, n_rows, data,
                                          n_logits * self.n_vocab)
                check(status)
            finally:
                self.leave()
        finally:
            if c_rows != &one:
                PyMem_Free(c_rows)
        return out

    def slot_logits(self, uint32_t slot):
        """Logits at the slot's last position, float32 [V], the same bits as when they were run."""
        cdef cnp.ndarray out = np.empty(self.n_vocab, dtype=np.float32)
        cdef float* data = <float*>cnp.PyArray_DATA(out)
        cdef wkvm_status status
        self.enter()
        try:
            with nogil:
                status = wkvm_slot_logits(self.engine, slot, data, self.n_vocab)
            check(status)
        finally:
            self.leave()
        return out

    def acquire(self):
        """A slot with an empty state. Raises NoSlotError when all are in use."""
        cdef uint32_t slot
        self.enter()
        try:
            check(wkvm_slot_acquire(self.engine, &slot))
        finally:
            self.leave()
        return slot

    def release(self, uint32_t slot):
        """Give a slot back; from inside one of the engine's calls, at the next turn."""
        if self.turn_owner == PyThread_get_thread_ident():
            self.abandoned.append(slot)
            return
        self.enter()
        try:
            check(wkvm_slot_release(self.engine, slot))
        finally:
            self.leave()

    def abandon(self, uint32_t slot):
        """Give a slot back at the next turn, without waiting; for finalizers."""
        self.abandoned.append(slot)

    def reset(self, uint32_t slot):
        """Empty a slot's state."""
        self.enter()
        try:
            check(wkvm_slot_reset(self.engine, slot))
        finally:
            self.leave()

    def copy(self, uint32_t source, uint32_t target):
        """Copy one slot's state over another's."""
        cdef wkvm_status status
        self.enter()
        try:
            with nogil:
                status = wkvm_slot_copy(self.engine, source, target)
            check(status)
        finally:
            self.leave()

    def n_tokens(self, uint32_t slot):
        """Tokens that the slot's state has seen."""
        cdef uint64_t n
        self.enter()
        try:
            check(wkvm_slot_n_tokens(self.engine, slot, &n))
        finally:
            self.leave()
        return n

    def is_spoilt(self, uint32_t slot):
        """Whether a numeric error has spoilt the slot's state."""
        cdef uint32_t spoilt
        self.enter()
        try:
            check(wkvm_slot_is_spoilt(self.engine, slot, &spoilt))
        finally:
            self.leave()
        return bool(spoilt)

    def export_state(self, uint32_t slot):
        """The slot's state as named arrays, copied out of it in one turn."""
        cdef size_t n
        cdef size_t i
        cdef wkvm_tensor tensor
        cdef cnp.ndarray array
        cdef void* data
        cdef wkvm_status status
        state = {}
        self.enter()
        try:
            check(wkvm_slot_tensor_count(self.engine, slot, &n))
            for i in range(n):
                check(wkvm_slot_tensor(self.engine, slot, i, &tensor))
                name, element_type, shape = describe(&tensor)
                array = np.empty(shape, dtype=_KV_ELEMENTS[element_type])
                data = cnp.PyArray_DATA(array)
                with nogil:
                    status = wkvm_slot_export(self.engine, slot, i, data, tensor.n_bytes)
                check(status)
                state[name] = array
        finally:
            self.leave()
        return state

    def import_state(self, uint32_t slot, n_tokens, state):
        """Replace the slot's state by named arrays such as ``export_state`` gives.

        Raises:
            StateMismatchError: not the tensors, types, shapes, or finite values that this model,
                policy and KV type give a state of `n_tokens`; the slot is as it was.
        """
        cdef size_t n = len(state)
        cdef uint64_t seen = integer_below(1 << 63, n_tokens, "n_tokens")
        cdef cnp.ndarray buffer = np.zeros(max(n, 1) * sizeof(wkvm_tensor), dtype=np.uint8)
        cdef wkvm_tensor* tensors = <wkvm_tensor*>cnp.PyArray_DATA(buffer)
        cdef cnp.ndarray array
        cdef size_t i = 0
        cdef int d
        cdef wkvm_status status
        element_types = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
        owned = []
        for name, value in state.items():
            if not isinstance(value, np.ndarray) or value.dtype not in element_types:
                raise errors.StateMismatchError(
                    f"state tensor {name} is not a float32 or float16 array")
            if value.ndim > 8:
                raise errors.StateMismatchError(f"state tensor {name} has {value.ndim} dimensions")
            array = np.require(value, requirements=["C", "A"])
            encoded = name_bytes(name)
            owned.append((encoded, array))
            tensors[i].name = <const char*><bytes>encoded
            tensors[i].dtype = element_types[array.dtype]
            tensors[i].n_dims = array.ndim
            for d in range(array.ndim):
                tensors[i].shape[d] = array.shape[d]
            tensors[i].data = cnp.PyArray_DATA(array)
            tensors[i].n_bytes = array.nbytes
            i += 1
        self.enter()
        try:
            with nogil:
                status = wkvm_slot_import(self.engine, slot, seen, tensors, n)
            check(status)
        finally:
            self.leave()

# ---------------------------------------------------------------- tokenizer

cdef extern from "wkvm.h" nogil:
    ctypedef struct wkvm_tokenizer:
        pass
    wkvm_status wkvm_tokenizer_open(const char* path, wkvm_tokenizer** out)
    wkvm_status wkvm_tokenizer_from_bytes(const void* data, size_t n_bytes, wkvm_tokenizer** out)
    wkvm_status wkvm_tokenizer_bytes(wkvm_tokenizer** out)
    wkvm_status wkvm_tokenizer_free(wkvm_tokenizer* tokenizer)
    wkvm_status wkvm_tokenizer_vocab_size(const wkvm_tokenizer* tokenizer, uint32_t* out)
    wkvm_status wkvm_tokenizer_max_id(const wkvm_tokenizer* tokenizer, uint32_t* out)
    wkvm_status wkvm_tokenizer_token(const wkvm_tokenizer* tokenizer, uint32_t id,
                                     const char** text, size_t* n_bytes)
    wkvm_status wkvm_tokenizer_encode(const wkvm_tokenizer* tokenizer, const char* text,
                                      size_t n_bytes, uint32_t* ids, size_t capacity,
                                      size_t* n_ids, size_t* n_read)
    wkvm_status wkvm_tokenizer_decode(const wkvm_tokenizer* tokenizer, const uint32_t* ids,
                                      size_t n_ids, char* text, size_t capacity, size_t* n_bytes)

cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(PyObject* items, Py_ssize_t i)

# Bytes of text from which giving up the interpreter lock costs less than it frees.
cdef enum:
    UNLOCKED_BYTES = 1 << 16


cdef class Tokenizer:
    """Greedy longest-match tokenizer over bytes; immutable, and safe in several threads.

    Args:
        source: path of a vocabulary file, or its content as bytes; None: the 256 bytes
            themselves, byte b is id b.

    Raises:
        FileError: the file cannot be read.
        FormatError: it is not a vocabulary; the message names the line.
    """

    cdef wkvm_tokenizer* tokenizer
    cdef readonly uint32_t vocab_size
    cdef readonly uint32_t max_id
    cdef tuple ids  # the integers 0 to max_id, made once: a list of ids only refers to them

    def __cinit__(self, source=None):
        cdef bytes owner
        if source is None:
            check(wkvm_tokenizer_bytes(&self.tokenizer))
        elif isinstance(source, bytes):
            owner = source
            check(wkvm_tokenizer_from_bytes(PyBytes_AS_STRING(owner), len(owner), &self.tokenizer))
        else:
            owner = path_bytes(source)
            check(wkvm_tokenizer_open(owner, &self.tokenizer))
        check(wkvm_tokenizer_vocab_size(self.tokenizer, &self.vocab_size))
        check(wkvm_tokenizer_max_id(self.tokenizer, &self.max_id))
        self.ids = tuple(range(self.max_id + 1))

    def __dealloc__(self):
        wkvm_tokenizer_free(self.tokenizer)

    cdef list encode_utf8(self, const char* text, size_t n_bytes):
        cdef PyObject* table = <PyObject*>self.ids
        cdef PyObject* number
        cdef uint32_t* ids
        cdef size_t n_ids, n_read, i
        cdef wkvm_status status
        cdef list out
        if n_bytes == 0:
            return []
        ids = <uint32_t*>malloc(n_bytes * sizeof(uint32_t))  # pages are taken as they are touched
        if ids == NULL:
            raise errors.OutOfMemoryError(f"no memory to encode {n_bytes} bytes of text")
        try:
            if n_bytes < UNLOCKED_BYTES:
                status = wkvm_tokenizer_encode(self.tokenizer, text, n_bytes, ids, n_bytes,
                                               &n_ids, &n_read)
            else:
                with nogil:
                    status = wkvm_tokenizer_encode(self.tokenizer, text, n_bytes, ids, n_bytes,
                                                   &n_ids, &n_read)
            check(status)
            out = PyList_New(n_ids)
            for i in range(n_ids):
                number = PyTuple_GET_ITEM(table, ids[i])
                Py_INCREF(<object>number)
                PyList_SET_ITEM(out, i, <object>number)
            return out
        finally:
            free(ids)

    def encode(self, text):
        """The token ids of a str: a list of int.

        Raises:
            InvalidArgumentError: not a str, a lone surrogate, or a byte that begins no token.
        """
        cdef const char* data
        cdef Py_ssize_t n_bytes
        if not isinstance(text, str):
            raise errors.InvalidArgumentError(
                f"text is {type(text).__name__}, not str; encode_bytes takes bytes")
        try:
            data = PyUnicode_AsUTF8AndSize(text, &n_bytes)
        except UnicodeEncodeError as error:
            raise errors.InvalidArgumentError(
                f"text is not valid Unicode: a lone surrogate at position {error.start}; "
                "encode_bytes takes any bytes") from None
        return self.encode_utf8(data, n_bytes)

    def encode_bytes(self, data):
        """The token ids of bytes, or of anything that lends its memory as bytes: a list of int.

        Raises:
            InvalidArgumentError: a byte that begins no token of the vocabulary.
        """
        cdef bytes owner = data if isinstance(data, bytes) else bytes(memoryview(data))
        return self.encode_utf8(PyBytes_AS_STRING(owner), len(owner))

    def decode(self, ids):
        """The text of token ids, each sequence of bytes that is not UTF-8 replaced by U+FFFD.

        Args:
            ids: a sequence of int, or an integer array [n].

        Raises:
            InvalidArgumentError: an id that is not from 0 to vocab_size - 1.
        """
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids):
        """The bytes of token ids; undefined ids below vocab_size have none. Raises as decode."""
        cdef cnp.ndarray array = as_tokens(ids)
        cdef const uint32_t* data = <const uint32_t*>cnp.PyArray_DATA(array)
        cdef size_t n_bytes
        cdef bytes out
        check(wkvm_tokenizer_decode(self.tokenizer, data, array.size, NULL, 0, &n_bytes))
        out = PyBytes_FromStringAndSize(NULL, n_bytes)
        check(wkvm_tokenizer_decode(self.tokenizer, data, array.size, PyBytes_AS_STRING(out),
                                    n_bytes, &n_bytes))
        return out

    def token_bytes(self, token):
        """The bytes of one token; none for an undefined id below vocab_size. Raises as decode."""
        cdef const char* data
        cdef size_t n_bytes
        check(wkvm_tokenizer_token(self.tokenizer, integer_below(1 << 32, token, "a token"),
                                   &data, &n_bytes))
        return PyBytes_FromStringAndSize(data, n_bytes)
