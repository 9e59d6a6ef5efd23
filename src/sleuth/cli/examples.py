"""One example of each of our verbs, which its help ends with, and what `sleuth` prints without arguments."""

FIRST = """Try these first:
  sleuth ask FOLDER "QUESTION"    ask your documents; nothing leaves this machine
  sleuth demo                     watch a tiny model learn to search, five minutes
  sleuth recipes                  what can be trained, and on which card

sleuth --help lists all commands, sleuth COMMAND --help explains one."""

EXAMPLES = {
    "annotate questions": "annotate questions runs/papers runs/papers/questions",
    "annotate rubrics": "annotate rubrics rows.jsonl --teacher teacher.toml --out with_rubrics.jsonl",
    "annotate thoughts": "annotate thoughts TEXTS --teacher teacher.toml --model MODEL --out thoughts.parquet",
    "ask": 'ask papers "Where was Ada Voss born?"',
    "certify": "certify MODEL --base models/tiny-base --questions test.jsonl --index DIR --run runs/mine",
    "check corpus": "check corpus corpus.jsonl.gz --against questions.jsonl",
    "check data": "check data questions.jsonl --against test.jsonl",
    "check index": "check index indexes/mine",
    "check judge": "check judge judge.toml",
    "check model": "check model Qwen/Qwen3-0.6B --recipe mine.toml",
    "check protocols": "check protocols runs/a/checkpoints/step-000100 runs/b/checkpoints/step-000100",
    "check recipe": "check recipe search_0.6b_24gb",
    "check scorer": "check scorer cases.jsonl",
    "check sweep": "check sweep tiny/thinking_sweep",
    "check texts": "check texts texts.jsonl --against other.jsonl",
    "compare": "compare runs/demo runs/short",
    "demo": 'demo --real --ask "Who built the first railway steam locomotive?"',
    "eval": "eval MODEL --questions questions.jsonl --index indexes/mine --limit 100",
    "eval-suite": "eval-suite MODEL seven --per-set 500 --index indexes/wiki-18-bm25",
    "export": "export runs/demo/checkpoints/step-000220 --gguf",
    "get": "get wiki-18 --plan",
    "index": "index corpus.jsonl.gz indexes/mine",
    "init": "init mine --corpus texts/ --questions questions.csv",
    "learn": "learn papers",
    "merge": "merge checkpoints/global_step_2000/actor models/rules --like reason_over_search_0.6b_rules",
    "plan": "plan search_0.6b_24gb --card rtx-4090 --price 0.50",
    "probe": "probe MODEL --questions questions.jsonl --index indexes/mine --limit 100",
    "probe-thoughts": "probe-thoughts MODEL thinking_0.6b",
    "prompts import": "prompts import p3_decide_no_ex templates.py",
    "recipes": "recipes search_0.6b_24gb > mine.toml",
    "replay": "replay runs/demo 1 --set stage.1.loss.beta=0.01",
    "report": "report runs/demo",
    "reproduce": "reproduce search-r1-slime --tiny",
    "rescore": "rescore runs/demo --reward new.toml",
    "retriever": "retriever indexes/mine --port 8000",
    "search": 'search indexes/mine "who founded Ashmarsh Brewery" -k 3',
    "serve": "serve runs/demo/checkpoints/step-000220 --index runs/world/index",
    "sweep": "sweep tiny/thinking_sweep --arm paid --seed 1",
    "train": "train demo --set grpo.steps=60 --run runs/short",
    "watch": "watch runs/demo",
    "win-rate": "win-rate MODEL recipes/tiny/self_improving.toml --against models/tiny-base",
    "world": "world runs/world --people 400",
}
