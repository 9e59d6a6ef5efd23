"""Writes a checkpoint as one GGUF file, which llama.cpp and Ollama run.

Tensors are read from safetensors files and written a few rows at a time. Matrices get one dtype; vectors (norms,
biases) are float32, as llama.cpp computes with them. A tokenizer is byte-level BPE, which llama.cpp splits into the
same tokens, or the export is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sleuth.convert.layouts import TensorPart, WholeTensor
from sleuth.convert.merge import assemble_weights, dtype_name, main_dtype, row_blocks
from sleuth.convert.shards import open_safetensors, read_blueprint
from sleuth.episodes.protocol import ProtocolCard
from sleuth.host.atomic import replacing_file, write_text
from sleuth.host.checksums import of_model, require_intact
from sleuth.host.disk import SLACK, recognising_full_disk, require_free
from sleuth.learn.models import load_outline
from sleuth.runs.model_card import LOOP, gguf_card
from sleuth.types import SleuthError

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""By the names of `--dtype`; in capitals they are those of the format."""
FAMILIES = {"llama": (".weight",), "qwen2": (".weight", ".bias"), "qwen3": (".weight",)}
"""What tensors' names may end in, by `model_type`, which llama.cpp calls by the same name."""
INTERLEAVED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
"""llama.cpp rotates neighbouring elements of a head in the family `llama`, and halves of a head, as transformers does,
in the others."""
FREQUENCY_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. `dtype` is that of matrices; `bytes` is the size of the file."""

    file: Path
    architecture: str
    tensors: int
    parameters: int
    dtype: str
    bytes: int
    protocol: ProtocolCard | None
    protocol_file: Path | None
    card: Path
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor under its name in the file; `head` rows at a time are interleaved, where it is more than 1."""

    name: str
    whole: WholeTensor
    dtype: torch.dtype
    head: int = 1

    @property
    def nbytes(self) -> int:
        return self.whole.numel * self.dtype.itemsize

    def blocks(self) -> Iterator[torch.Tensor]:
        """The rows as they are written. Raises SleuthError where float16 cannot hold a value."""
        for block in row_blocks(self.whole, together=self.head):
            if self.head > 1:
                block = block.unflatten(0, (-1, 2, self.head // 2)).transpose(1, 2).flatten(0, 2)
            written = block.to(self.dtype)
            if self.dtype == torch.float16 and not bool(written.isfinite().all()):
                raise SleuthError(f"{self.name} has values that float16 cannot hold; give --dtype bf16 or f32")
            yield written


def export_gguf(
    source: Path,
    out: Path | None = None,
    *,
    dtype: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Writes a Hugging Face folder as a GGUF file, with its protocol and a card beside it.

    `out` is NAME-DTYPE.gguf in the working folder by default; `dtype` is one of `DTYPES`, or None for that of the
    weights. Checksums, names and shapes are verified first; the file is created as a whole or not at all. Raises
    SleuthError.
    """
    outline = load_outline(str(source))
    require_intact(source, of_model)
    config = cast(PreTrainedConfig, AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False))
    family = _require_family(source, config)
    protocol = ProtocolCard.read(source)
    weights = assemble_weights(open_safetensors(source), read_blueprint(source))
    for name, whole in weights.items():
        if whole.dtype not in DTYPES.values():
            raise SleuthError(f"{source}: {name} is {dtype_name(whole.dtype)}; only unquantised weights are written")
    matrices = DTYPES[dtype] if dtype else main_dtype(weights, None)
    [short] = [name for name, one in DTYPES.items() if one == matrices]
    tensors = list(_tensors(source, config, weights, matrices))
    try:
        tokenizer = tokenizer_calls(outline.tokenizer, config.vocab_size, outline.eos_ids)
    except SleuthError as error:
        raise SleuthError(f"{source}: {error}") from None

    name = _name_of(source)
    out = out or Path(f"{name}-{short}.gguf")
    protocol_file, card = out.with_suffix(".protocol.json"), out.with_suffix(".md")
    for path in (out, card, *([protocol_file] if protocol else [])):
        if path.exists():
            raise SleuthError(f"{path}: already exists; name another file with --out")
    folder = out.resolve().parent
    with recognising_full_disk(folder), replacing_file(out) as partial:
        require_free(folder, sum(tensor.nbytes for tensor in tensors) + SLACK)
        _write(partial, name, config, tokenizer, tensors, short, protocol, progress)
        context = protocol.context if protocol else outline.context
        write_text(card, gguf_card(out, source=source, dtype=short, protocol=protocol, context=context))
        if protocol:
            write_text(protocol_file, protocol.model_dump_json(indent=2) + "\n")
    return Exported(
        file=out,
        architecture=family,
        tensors=len(tensors),
        parameters=sum(whole.numel for whole in weights.values()),
        dtype=short,
        bytes=out.stat().st_size,
        protocol=protocol,
        protocol_file=protocol_file if protocol else None,
        card=card,
        context=context,
    )


def _require_family(source: Path, config: PreTrainedConfig) -> str:
    """The model's family. Raises SleuthError where llama.cpp would compute something else than transformers."""
    family, rope = str(config.model_type), config.rope_parameters
    if family not in FAMILIES:
        raise SleuthError(f"{source}: a model of type {family}; GGUF files are written of {', '.join(FAMILIES)}")
    kind = rope["rope_type"]
    if kind != "default" and (family, kind) != ("llama", "llama3"):
        raise SleuthError(f"{source}: its rotary embeddings are scaled by {kind!r}, which is not written to GGUF files")
    unusual = {
        "a sliding window": any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ()),
        f"hidden_act {config.hidden_act!r}": config.hidden_act != "silu",
        "partly rotated heads": rope.get("partial_rotary_factor", 1.0) != 1.0,
    }
    if names := [name for name, is_so in unusual.items() if is_so]:
        raise SleuthError(f"{source}: has {names[0]}, which llama.cpp does not compute for models of type {family}")
    return family


def _tensors(
    source: Path, config: PreTrainedConfig, weights: Mapping[str, WholeTensor], dtype: torch.dtype
) -> Iterator[GgufTensor]:
    """The tensors of the file. Raises SleuthError for one that llama.cpp does not know."""
    import gguf  # pyright: ignore[reportMissingImports]

    family = config.model_type
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], config.num_hidden_layers)
    for name, whole in weights.items():
        if (written := names.get_name(name, FAMILIES[family])) is None:
            raise SleuthError(f"{source}: {name} has no name in llama.cpp's models of type {family}")
        head = _head_size(config) if family == "llama" and name.endswith(INTERLEAVED) else 1
        yield GgufTensor(name=written, whole=whole, dtype=dtype if len(whole.shape) > 1 else torch.float32, head=head)
    if config.rope_parameters["rope_type"] != "default":
        yield GgufTensor(name=FREQUENCY_FACTORS, whole=_frequency_factors(config), dtype=torch.float32)


def _frequency_factors(config: PreTrainedConfig) -> WholeTensor:
    """By what each frequency of the rotary embeddings is divided, (head / 2)."""
    rope = config.rope_parameters
    scaled, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    size = _head_size(config)
    plain = rope["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    part = TensorPart(offset=(0,), tensor=plain / scaled)
    return WholeTensor(shape=tuple(part.tensor.shape), dtype=torch.float32, parts=(part,))


def _head_size(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _name_of(source: Path) -> str:
    """`demo-step-000220` for a checkpoint of the run `demo`, else the folder's own name."""
    folder = source.resolve()
    run = folder.parent.parent.name if folder.parent.name == "checkpoints" else ""
    return f"{run}-{folder.name}" if run else folder.name


def _write(
    path: Path,
    name: str,
    config: PreTrainedConfig,
    tokenizer: Sequence[WriterCall],
    tensors: list[GgufTensor],
    dtype: str,
    protocol: ProtocolCard | None,
    progress: Callable[[int, int], None],
) -> None:
    import gguf  # pyright: ignore[reportMissingImports]

    writer: Any = gguf.GGUFWriter(path, config.model_type)
    try:
        _add_shape(writer, name, config)
        writer.add_file_type({"f32": 0, "f16": 1, "bf16": 32}[dtype])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        if protocol:
            writer.add_string("sleuth.protocol", protocol.model_dump_json())
        for method, *arguments in tokenizer:
            getattr(writer, method)(*arguments)
        kinds = {one: gguf.GGMLQuantizationType[short.upper()] for short, one in DTYPES.items()}
        for tensor in tensors:  # the writer's own dtype has no say where a `raw_dtype` is given
            kind = kinds[tensor.dtype]
            writer.add_tensor_info(tensor.name, tensor.whole.shape, np.dtype(np.float32), tensor.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        [file] = writer.fout
        writer.write_padding(file, file.tell())
        for done, tensor in enumerate(tensors, 1):
            for block in tensor.blocks():
                file.write(block.contiguous().flatten().view(torch.uint8).numpy().data)
            writer.write_padding(file, tensor.nbytes)
            progress(done, len(tensors))
    finally:
        writer.close()


def _add_shape(writer: Any, name: str, config: PreTrainedConfig) -> None:
    size = _head_size(config)
    writer.add_name(name)
    writer.add_description(LOOP)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


# -- the tokenizer -----------------------------------------------------------------------------------------------------

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
WORDS = BYTES | {"use_regex": True}
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
MARKS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words_with_digits(digits: str) -> list[dict[str, Any]]:
    expression = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{MARKS_AND_SPACES}"
    return [{"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}, BYTES]


PRE_TOKENIZERS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "qwen2": (_words_with_digits(r"\p{N}"), False),
    "llama-bpe": (_words_with_digits(r"\p{N}{1,3}"), True),
    "gpt-2": ([WORDS], False),
    "smollm": ([{"type": "Digits", "individual_digits": True}, WORDS], False),
}
"""How a text is split before BPE, by llama.cpp's names: the steps in tokenizer.json, and whether `ignore_merges` is
set. llama.cpp has these expressions in its code, so a file names one and cannot bring its own."""
DIGITS_APART = [{"type": "Digits", "individual_digits": False}, WORDS]
"""That of `models/tiny-real`, which llama.cpp does not have: it cuts a number off the space before it."""
SPACES, DIGITS = "ĠĊĉč", "0123456789"
"""As byte-level BPE writes them."""
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens. The texts of control and user-defined tokens are found before a text is split."""
END_KEYS = ("eos", "eot", "eom")
"""Tokens at which llama.cpp ends a text."""


WriterCall = tuple[Any, ...]
"""A method of `gguf.GGUFWriter` and its arguments: `("add_tokenizer_pre", "qwen2")`."""


def tokenizer_calls(tokenizer: PreTrainedTokenizerFast, vocabulary: int, eos_ids: Collection[int]) -> list[WriterCall]:
    """What writes the tokenizer of a model with `vocabulary` rows of embeddings that ends texts with `eos_ids`. Raises
    SleuthError where llama.cpp would split texts differently."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    pre_tokenizer = _pre_tokenizer_of(described)
    tokens, types = _tokens_of(described, vocabulary)
    add_bos, add_eos = _added_around(tokenizer)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return [
        ("add_tokenizer_model", "gpt2"),  # byte-level BPE of any vocabulary
        ("add_tokenizer_pre", pre_tokenizer),
        ("add_token_list", tokens),
        ("add_token_types", types),
        ("add_token_merges", [" ".join(pair) for pair in described["model"]["merges"]]),
        *(
            ("add_uint32", f"tokenizer.ggml.{name}_token_id", number)
            for name, number in _special_ids(tokenizer, vocabulary, eos_ids).items()
        ),
        ("add_add_bos_token", add_bos),
        ("add_add_eos_token", add_eos),
        *([("add_chat_template", template)] if template else []),
    ]


def _pre_tokenizer_of(described: dict[str, Any]) -> str:
    """llama.cpp's name for how texts are split. Raises SleuthError if it has none."""
    model, normalizer = described["model"], described["normalizer"] or {"type": "NFC"}
    if model["type"] != "BPE":
        raise SleuthError(f"its tokenizer is {model['type']}, which cannot be written to GGUF: only byte-level BPE is")
    unusual = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    settings = [key for key in unusual if model[key]] + [normalizer["type"]] * (normalizer["type"] != "NFC")
    if settings:
        raise SleuthError(f"its tokenizer has {settings[0]}, which byte-level BPE in llama.cpp has not")
    given = described["pre_tokenizer"] or {}
    steps = given["pretokenizers"] if given.get("type") == "Sequence" else [given]
    steps = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
    joins = any(one[-1] in SPACES and other[0] in SPACES + DIGITS for one, other in model["merges"])
    if steps == DIGITS_APART and not joins:  # before numbers GPT-2 cuts at other spaces, and no merge reaches over them
        steps = [WORDS]
    for name, (known, ignores_merges) in PRE_TOKENIZERS.items():
        if steps == known and model["ignore_merges"] == ignores_merges:
            return name
    raise SleuthError(
        "llama.cpp would split texts into other tokens: of the pre-tokenizers that it has, those are written that it "
        f"calls {', '.join(PRE_TOKENIZERS)}; this tokenizer.json has another, as those of Sleuth's invented world do"
    )


def _tokens_of(described: dict[str, Any], vocabulary: int) -> tuple[list[str], list[int]]:
    """Text and type of every id; rows of embeddings without a token get unused ones."""
    known = {number: (token, NORMAL) for token, number in described["model"]["vocab"].items()}
    for added in described["added_tokens"]:
        if added["single_word"] or added["lstrip"] or added["rstrip"]:
            token = f"its added token {added['content']!r}"
            raise SleuthError(f"{token} takes in spaces or stands for whole words only, which llama.cpp does not do")
        known[added["id"]] = (added["content"], CONTROL if added["special"] else USER_DEFINED)
    if max(known) >= vocabulary:
        raise SleuthError(f"its tokenizer has a token {max(known)}, and the embeddings have only {vocabulary} rows")
    rows = [known.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocabulary)]
    return [token for token, _ in rows], [kind for _, kind in rows]


def _special_ids(tokenizer: PreTrainedTokenizerFast, vocabulary: int, eos_ids: Collection[int]) -> dict[str, int]:
    own = cast("int | None", tokenizer.eos_token_id)
    ends = sorted((number for number in eos_ids if number < vocabulary), key=lambda number: (number != own, number))
    if len(ends) > len(END_KEYS):
        raise SleuthError(f"it ends texts with {len(ends)} tokens, and a GGUF file names {len(END_KEYS)} at most")
    others = {"bos": tokenizer.bos_token_id, "unknown": tokenizer.unk_token_id, "padding": tokenizer.pad_token_id}
    named = {name: number for name, number in others.items() if isinstance(number, int)}
    return dict(zip(END_KEYS, ends, strict=False)) | named


def _added_around(tokenizer: PreTrainedTokenizerFast) -> tuple[bool, bool]:
    """Whether the tokenizer puts its first token before a text, and its last one behind it."""
    bare, whole = (tokenizer.encode("a", add_special_tokens=added) for added in (False, True))
    for add_bos, add_eos in product((False, True), repeat=2):
        if whole == [*[tokenizer.bos_token_id] * add_bos, *bare, *[tokenizer.eos_token_id] * add_eos]:
            return add_bos, add_eos
    raise SleuthError("its tokenizer puts other tokens around a text than its first and last, which GGUF cannot say")
