"""The environment of `examples/own_code/my_env.py` in TRL, whose reward is its own."""


class Guessing:
    def reset(self, golden_answers: list[str], **row: object) -> str:
        self.number = int(golden_answers[0])
        self.guesses = 0
        self.found = False
        return " You have 6 guesses; call the tool for each."

    def guess(self, number: int) -> str:
        """Guesses a number.

        Args:
            number: The guess.
        """
        if self.found or self.guesses == 6:
            return "The game is over."
        self.guesses += 1
        self.found = number == self.number
        return "right" if self.found else "higher" if number < self.number else "lower"

    def get_reward(self) -> float:
        return 1 / self.guesses if self.found else 0.0
