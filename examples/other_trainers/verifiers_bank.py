"""The bank of `examples/own_code/my_bank.py` in verifiers: a server of tools for each episode, and the taskset."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf


class BankData(vf.TaskData):
    accounts: dict[str, int]
    wanted: dict[str, int]


class BankState(vf.State):
    balances: dict[str, int] | None = None


class BankToolset(vf.Toolset[vf.ToolsetConfig, BankState]):
    TOOL_PREFIX = None

    async def setup_task(self, task: BankData) -> None:
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER CHECK (balance >= 0))")
        self.database.executemany("INSERT INTO accounts VALUES (?, ?)", task.accounts.items())

    @vf.tool
    def balance(self, owner: str) -> int:
        """Looks up what is in an account."""
        return self.database.execute("SELECT balance FROM accounts WHERE owner = ?", [owner]).fetchone()[0]

    @vf.tool
    def transfer(self, payer: str, payee: str, amount: int) -> str:
        """Moves money from one account to another."""
        with self.database as changes:  # both or neither
            for owner, change in ((payer, -amount), (payee, amount)):
                changes.execute("UPDATE accounts SET balance = balance + ? WHERE owner = ?", [change, owner])
        self.state.balances = dict(self.database.execute("SELECT owner, balance FROM accounts"))
        return "done"


class BankTask(vf.Task[BankData, BankState, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [BankToolset(vf.ToolsetConfig())]

    @vf.reward
    async def as_wanted(self, trace: vf.Trace) -> float:
        """The share of the accounts that hold what was wanted."""
        balances = trace.state.balances or self.data.accounts
        return sum(balances[owner] == amount for owner, amount in self.data.wanted.items()) / len(self.data.wanted)


class BankConfig(vf.TasksetConfig):
    questions: Path


class BankTaskset(vf.Taskset[BankTask, BankConfig]):
    def load(self) -> Iterator[BankTask]:
        for row in map(json.loads, self.config.questions.read_text().splitlines()):
            prompt = f"{row['question']} There are accounts of {', '.join(row['accounts'])}."
            data = BankData(prompt=prompt, accounts=row["accounts"], wanted=row["wanted"])
            yield BankTask(data, self.config.task)


__all__ = ["BankTaskset"]

if __name__ == "__main__":
    BankToolset.run()
