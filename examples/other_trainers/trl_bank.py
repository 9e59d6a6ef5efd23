"""The bank of `examples/own_code/my_bank.py` in TRL. Sleuth takes this class too, as it is."""

import sqlite3


class Bank:
    def reset(self, accounts: dict, wanted: dict, **row: object) -> str:
        self.wanted = wanted
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER CHECK (balance >= 0))")
        self._database.executemany("INSERT INTO accounts VALUES (?, ?)", accounts.items())
        return f" There are accounts of {', '.join(accounts)}."

    def balance(self, owner: str) -> int:
        """Looks up what is in an account.

        Args:
            owner: Whose account.
        """
        return self._database.execute("SELECT balance FROM accounts WHERE owner = ?", [owner]).fetchone()[0]

    def transfer(self, payer: str, payee: str, amount: int) -> str:
        """Moves money from one account to another.

        Args:
            payer: Whose account it is taken from.
            payee: Whose account it goes to.
            amount: How much.
        """
        with self._database as changes:  # both or neither
            for owner, change in ((payer, -amount), (payee, amount)):
                changes.execute("UPDATE accounts SET balance = balance + ? WHERE owner = ?", [change, owner])
        return "done"

    def get_reward(self) -> float:
        balances = dict(self._database.execute("SELECT owner, balance FROM accounts"))
        return sum(balances[owner] == amount for owner, amount in self.wanted.items()) / len(self.wanted)
