"""Checkpoints of strangers: each is `models/tiny-base` with one change that a file from elsewhere may have."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from forked import forking
from gguf_models import write_protocol
from safetensors.torch import load_file, save_file

from sleuth.cli import main

BASE = Path(__file__).parents[2] / "models" / "tiny-base"
SECONDS = 90.0
"""Far above what any of them takes alone; a hang takes for ever."""
BYTES = 3 << 30
"""Address space beyond that of the process that it is forked from, most of it libraries and threads."""
CATASTROPHIC = r"(?s)\A(?P<text>(?:.|.)+)(?P<kind>[\x00\x01])"
LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
Change = Callable[[Path], object]


class Opens:
    """What a pickle runs that a torch.load without limits reads."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch $CANARY",)


def edit(name: str, **values: Any) -> Change:
    """Sets keys of a JSON file; `a__b` is b in a, and ... removes the key."""

    def change(folder: Path) -> None:
        file = folder / name
        content = json.loads(file.read_text()) if file.exists() else {}
        for path, value in values.items():
            *above, key = path.split("__") if not path.startswith("_") else [path]
            place = content
            for part in above:
                place = place[part]
            if value is ...:
                del place[key]
            else:
                place[key] = value
        file.write_text(json.dumps(content))

    return change


def protocol(**values: Any) -> Change:
    """The protocol of the dialect "sleuth" with these keys."""

    def change(folder: Path) -> None:
        write_protocol(folder, "sleuth", "plain")
        edit("protocol.json", **values)(folder)

    return change


def template(text: str) -> Change:
    """A chat template, and a protocol that asks with it."""

    def change(folder: Path) -> None:
        protocol(prompt_role="user")(folder)
        (folder / "chat_template.jinja").write_text(text)

    return change


def content(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def prompt_of(text: str) -> Change:
    return protocol(prompt_text=text, prompt_sha256=hashlib.sha256(text.encode()).hexdigest())


def weights(edited: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def change(folder: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
        edited(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def header(edited: Callable[[dict[str, Any]], object]) -> Change:
    """Another header before the same tensors."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        names = json.loads(data[8 : 8 + size])
        edited(names)
        text = json.dumps(names).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return change


def long_header(folder: Path) -> None:
    size = 100_000_000 - 100_000_000 % 8
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + b'{"a":[' + b"[" * (size - 6) + data[-1000:])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Opens(), protocol=2))


def indexed(index: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def own_code(folder: Path) -> None:
    edit("config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"})(folder)
    edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]}, tokenizer_class="C")(folder)
    (folder / "evil.py").write_text("import os\nopen(os.environ['CANARY'], 'w')\nclass C: pass\n")


def own_family(folder: Path) -> None:
    own_code(folder)
    edit("config.json", model_type="evil")(folder)


def normaliser(folder: Path) -> None:
    doubling = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40
    edit("tokenizer.json", normalizer={"type": "Sequence", "normalizers": doubling})(folder)


def split(pattern: str) -> Change:
    pre = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return edit("tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [pre, BYTE_LEVEL]})


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PADDING = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}


def lying(names: dict[str, Any]) -> None:
    next(value for name, value in names.items() if name != "__metadata__")["shape"] = [10**9, 10**9]


def far_layers(folder: Path) -> None:
    edit("config.json", num_hidden_layers=10**9, layer_types=...)(folder)


HOSTILE: dict[str, Change] = {
    "pattern_action": protocol(dialect__action=CATASTROPHIC),
    "prompt_long": prompt_of("{question}" + "x" * 30_000_000),
    "card_deep": content("protocol.json", b'{"dialect":' + b"[" * 3_000_000),
    "template_loops": template(LOOPS),
    "template_late": template(
        "{{ messages[0].content }}{% if '?' not in messages[0].content %}" + LOOPS + "{% endif %}"
    ),
    "pickle": pickled,
    "weight_map_outside": indexed({"metadata": {}, "weight_map": {"model.norm.weight": "../../../../etc/passwd"}}),
    "vocab_small": edit("config.json", vocab_size=10),
    "hub_attention": edit("config.json", _attn_implementation="evil/kernel", attn_implementation="evil/kernel"),
    "own_code": own_code,
    "own_family": own_family,
    "quantised": edit("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
    "quantised_oddly": edit("config.json", quantization_config={"quant_method": "evil", "modules": "evil.C"}),
    "normaliser_doubles": normaliser,
    "split_hangs": split(r"(?:[a-zA-Z ]|[a-z A-Z])+[\x00\x01]"),
    "padded": edit("tokenizer.json", padding=PADDING | {"pad_type_id": 0, "pad_token": "x"}),
    "tokenizer_deep": content("tokenizer.json", b"[" * 3_000_000),
    "generation_code": edit("generation_config.json", custom_generate="evil/code", eos_token_id=-7),
    "generation_text": edit("generation_config.json", eos_token_id="import os"),
    "shape_lies": header(lying),
    "header_long": long_header,
    "not_numbers": weights(lambda tensors: tensors["model.norm.weight"].fill_(float("nan"))),
    "layers": far_layers,
    "width": edit("config.json", hidden_size=10**9),
    "positions": edit("config.json", max_position_embeddings=10**15),
    "config_deep": content("config.json", b'{"a":' * 1_000_000),
    "adapter": edit("adapter_config.json", peft_type="LORA", base_model_name_or_path="evil/model"),
}


REFUSED = {
    "pattern_action": "dialect.action takes more than 1 s to read a turn",
    "prompt_long": "protocol.json: 30,001,302 bytes",
    "card_deep": "protocol.json: recursion limit exceeded",
    "template_loops": "the chat template was stopped while it rendered messages of user: it does not end",
    "template_late": "the chat template was stopped while it rendered messages of user: it does not end",
    "pickle": "its weights are a pickle with code in it, which was not run",
    "weight_map_outside": "index.json: weight_map should name a file of this folder",
    "vocab_small": "vocab_size = 10 of its config, but its tokenizer has 877 tokens",
    "hub_attention": "config.json: _attn_implementation = 'evil/kernel' names code of the hub",
    "own_family": "contains custom code",
    "quantised": "requires optimum",
    "normaliser_doubles": "makes a text 1,099,511,627,776 times as long",
    "split_hangs": "an expression of its tokenizer.json takes more than",
    "tokenizer_deep": "no tokenizer could be loaded",
    "generation_text": "eos_token_id = 'import os'",
    "shape_lies": "model.safetensors: cannot be read: Error while deserializing header: invalid shape",
    "header_long": "model.safetensors: cannot be read: Error while deserializing header: invalid JSON",
    "not_numbers": "the model's logits are not finite",
    "layers": "config.json: num_hidden_layers = 1000000000: should be at most 10000",
    "width": "its weights have other shapes than its config.json says",
    "positions": "max_position_embeddings = 1000000000000000: should be",
    "config_deep": "config.json: 5,000,000 bytes",
    "adapter": "holds adapter_config.json, an adapter of another model",
}
"""What `sleuth eval` prints of each; the others answer as if the change was not there."""
QUICK = ["width", "weight_map_outside", "hub_attention", "padded", "layers"]


def stranger(name: str, place: Path) -> Path:
    shutil.copytree(BASE, place)
    HOSTILE[name](place)
    return place


def run_bounded(arguments: list[str], out: Connection, canary: str) -> None:
    """`sleuth` in a forked process with a limit of memory; it writes all into one file."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))
    os.environ |= {"CANARY": canary, "HF_HUB_OFFLINE": "1"}
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    sys.argv = ["sleuth", *arguments]
    main()


@contextmanager
def asked(folder: Path, *arguments: object) -> Iterator[tuple[Any, Path]]:
    """A process of `sleuth` with these arguments, and the file of all that it prints."""
    out = folder.with_suffix(".out")
    with out.open("wb") as file:
        process = forking().Process(
            target=run_bounded, args=(list(map(str, arguments)), Connection(os.dup(file.fileno())), f"{folder}.canary")
        )
        process.start()
    try:
        yield process, out
    finally:
        process.kill()
        process.join()
    assert not Path(f"{folder}.canary").exists()
    assert "Traceback" not in out.read_text(errors="replace")


def printed_by(folder: Path, *arguments: object) -> tuple[int, str]:
    """Exit status and the last line of what is printed, within the time."""
    with asked(folder, *arguments) as (process, out):
        process.join(SECONDS)
        assert process.exitcode is not None, f"still running after {SECONDS} s: {out.read_text()[-500:]}"
        lines = out.read_text(errors="replace").splitlines()
    assert sum(line.startswith("error: ") for line in lines) <= 1
    return process.exitcode, lines[-1]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"id": str(at), "question": f"Where was {'a' * 40} born?", "golden_answers": ["x"]} for at in range(2)]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def refuses_or_answers(name: str, folder: Path, questions: Path) -> None:
    status, line = printed_by(folder, "eval", folder, "--questions", questions)
    if name in REFUSED:
        assert status == 2
        assert line.startswith("error: ")
        assert REFUSED[name] in line
    else:
        assert status == 0


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_checkpoint_is_refused_in_one_line_or_does_no_harm(
    name: str, tmp_path: Path, questions: Path
) -> None:
    refuses_or_answers(name, stranger(name, tmp_path / name), questions)


@pytest.mark.parametrize("name", ["weight_map_outside", "hub_attention", "normaliser_doubles", "adapter"])
def test_training_from_a_hostile_checkpoint_is_refused_in_one_line(
    name: str, tmp_path: Path, recipe_file: Path
) -> None:
    folder = stranger(name, tmp_path / name)
    recipe_file.write_text(re.sub('model = "[^"]*"', f'model = "{folder}"', recipe_file.read_text(), count=1))
    status, line = printed_by(folder, "train", recipe_file, "--run", tmp_path / "run")
    assert (status, line[:7]) == (2, "error: ")
    assert REFUSED[name] in line


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_every_hostile_checkpoint_is_evaluated_checked_and_served_in_bounds(
    name: str, tmp_path: Path, questions: Path
) -> None:
    folder = stranger(name, tmp_path / name)
    refuses_or_answers(name, folder, questions)
    status, _ = printed_by(folder, "check", "model", folder)
    assert status in (0, 1, 2)
    assert "protocol.json" not in REFUSED.get(name, "") or status == 1
    with asked(folder, "serve", folder, "--port", 0) as (process, out):
        url = address(process, out)
        if url is None:
            assert process.exitcode == 2
            return
        body = {"messages": [{"role": "user", "content": "Where?"}]}
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=SECONDS)
        stop(process)


def address(process: Any, out: Path) -> str | None:
    """Where it serves; None if it has ended."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.is_alive():
        line = next((line for line in out.read_text().splitlines() if " tokens of context, at http" in line), "")
        with suppress(httpx.HTTPError):
            if line and httpx.get(f"{line.rpartition(' ')[2]}/health", timeout=5).status_code == 200:
                return line.rpartition(" ")[2]
        time.sleep(0.05)
    assert not process.is_alive(), f"neither serves nor ends within {SECONDS} s"
    return None


def stop(process: Any) -> None:
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert process.exitcode in (0, -signal.SIGTERM, 143)


def test_a_server_answers_and_ends_while_an_expression_of_its_checkpoint_runs(tmp_path: Path) -> None:
    folder = stranger("pattern_action", tmp_path / "pattern")
    with asked(folder, "serve", folder, "--port", 0) as (process, out), ThreadPoolExecutor(1) as pool:
        url = address(process, out)
        assert url is not None
        body = {"messages": [{"role": "user", "content": "Where?"}]}
        answer = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=SECONDS)
        asked_health = 0
        while not answer.done():
            assert httpx.get(f"{url}/health", timeout=10).status_code == 200
            asked_health += 1
        assert asked_health
        assert answer.result().status_code >= 400
        assert "dialect.action takes more than 1 s" in answer.result().text
        pool.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=SECONDS)
        stop(process)


def test_a_server_ends_while_the_template_of_its_checkpoint_runs(tmp_path: Path) -> None:
    folder = stranger("template_loops", tmp_path / "template")
    with asked(folder, "serve", folder, "--port", 0) as (process, _):
        end = time.monotonic() + SECONDS
        while not (workers := rendering(process.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        stop(process)
    assert workers
    end = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)  # it does not loop on without us


def rendering(parent: int) -> list[int]:
    """The processes that render for `parent`."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    with suppress(OSError):
        return [
            int(pid)
            for pid in children.read_text().split()
            if b"render_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
    return []
