"""An environment of your own with a database: each episode has a bank of its own in memory. `bank.toml` trains in it."""

import sqlite3


class Bank:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", check_same_thread=False)  # calls have threads of their own

    def reset(self, accounts: dict, wanted: dict) -> str:
        self.wanted = wanted
        self.database.execute("CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER CHECK (balance >= 0))")
        self.database.executemany("INSERT INTO accounts VALUES (?, ?)", accounts.items())
        return f" There are accounts of {', '.join(accounts)}."

    def balance(self, owner: str) -> int:
        """Looks up what is in an account.

        Args:
            owner: Whose account.
        """
        return self.database.execute("SELECT balance FROM accounts WHERE owner = ?", [owner]).fetchone()[0]

    def transfer(self, payer: str, payee: str, amount: int) -> str:
        """Moves money from one account to another.

        Args:
            payer: Whose account it is taken from.
            payee: Whose account it goes to.
            amount: How much.
        """
        with self.database as changes:  # both or neither
            for owner, change in ((payer, -amount), (payee, amount)):
                changes.execute("UPDATE accounts SET balance = balance + ? WHERE owner = ?", [change, owner])
        return "done"

    @property
    def done(self) -> bool:
        return self.score() == 1

    def score(self) -> float:
        """The share of the accounts that hold what was wanted."""
        balances = dict(self.database.execute("SELECT owner, balance FROM accounts"))
        return sum(balances[owner] == amount for owner, amount in self.wanted.items()) / len(self.wanted)

    def close(self) -> None:
        self.database.close()
