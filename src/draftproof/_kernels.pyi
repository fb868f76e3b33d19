"""The compiled kernels; `native/src/bindings.cpp` is what they are. Absent where nothing could compile them."""

from typing import Any

from numpy.typing import NDArray

class Matrix:
    """Weights [outputs, depth] in panels."""

    @property
    def outputs(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def unpack_row(self, output: int, out: NDArray[Any]) -> None: ...

class Arena:
    """Memory for matrices that are read one after the other."""

    def __init__(self) -> None: ...
    def pack_f32(self, w: NDArray[Any]) -> Matrix: ...
    def pack_bf16(self, w: NDArray[Any]) -> Matrix: ...
    def pack_int8(self, q: NDArray[Any], scales: NDArray[Any]) -> Matrix: ...
    def pack_int8_groups(self, q: NDArray[Any], scales: NDArray[Any]) -> Matrix: ...
    def pack_int4(self, q: NDArray[Any], scales: NDArray[Any], minima: NDArray[Any]) -> Matrix: ...

def matmul(
    w: Matrix, x: NDArray[Any], y: NDArray[Any], quantise: bool = False, isa: str = "auto", threads: int = 1
) -> None: ...
def isas() -> list[str]: ...
def distributions(
    scores: NDArray[Any], temperature: float, top_p: float, min_p: float, out: NDArray[Any], isa: str = "auto"
) -> None: ...
def best(scores: NDArray[Any], isa: str = "auto") -> tuple[int, float]: ...
def residual(p: NDArray[Any], q: NDArray[Any], scale: float, out: NDArray[Any], isa: str = "auto") -> float: ...
def compare(p: NDArray[Any], q: NDArray[Any], scale: float, isa: str = "auto") -> tuple[float, float]: ...
def draw(row: NDArray[Any], u: float, isa: str = "auto") -> int: ...
def race(row: NDArray[Any], gaps: NDArray[Any], seed: int, position: int, isa: str = "auto") -> int: ...
def uniform(seed: int, position: int, use: int, index: int) -> float: ...

class Activation:
    silu: Activation
    gelu_tanh: Activation

class Rope:
    frequencies: list[float]
    scale: float
    def __init__(self) -> None: ...

class Config:
    max_context: int
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    attention_scale: float
    embedding_scale: float
    activation: Activation
    quantised_activations: bool
    ropes: list[Rope]
    embedding: Matrix
    head: Matrix
    final_norm: list[float]
    head_tokens: list[int]
    fuse: Matrix
    fuse_norm: list[float]
    embedding_norm: list[float]
    normed_residual: bool
    def __init__(self) -> None: ...

class Layer:
    qkv: Matrix
    out: Matrix
    gate_up: Matrix
    down: Matrix
    qkv_bias: list[float]
    out_bias: list[float]
    attention_norm: list[float]
    mlp_norm: list[float]
    query_norm: list[float]
    key_norm: list[float]
    attention_out_norm: list[float]
    mlp_out_norm: list[float]
    window: int
    rope: int
    def __init__(self) -> None: ...

class Cache:
    @property
    def length(self) -> int: ...
    @property
    def shallow(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def reusable(self, length: int) -> int: ...
    def rollback(self, length: int, keep: list[int]) -> None: ...

class Model:
    def __init__(
        self, config: Config, layers: list[Layer], isa: str, threads: int, caches_of: Model | None = None
    ) -> None: ...
    def new_cache(self) -> Cache: ...
    def forward(self, segments: list[tuple[Any, ...]], layers: list[int], exit_layer: int) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def isa(self) -> str: ...
