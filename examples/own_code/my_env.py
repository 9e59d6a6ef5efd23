"""An environment of your own: the policy guesses a number and reads whether it is higher or lower."""

import re

from sleuth.types import Action, Piece, Reply, StopReason, Task


class Guessing:
    """One game. The number is the task's golden answer; each guess is one answer."""

    def __init__(self, task: Task, *, guesses: int = 6) -> None:
        self.number = int(task.golden_answers[0])
        self.question = task.question
        self.left = guesses

    async def open(self) -> Reply:
        return self.turn(f"{self.question} You have {self.left} guesses. Write <answer>NUMBER</answer>.\n")

    async def reply(self, text: str, stop: StopReason) -> Reply:
        self.left -= 1
        found = re.search(r"<answer>\s*(\d+)\s*</answer>", text)
        if found is None:
            return self.turn("\nWrite one number.\n", Action(kind="invalid", text=text))
        guess = int(found[1])
        action = Action(kind="answer", text=str(guess))
        if guess == self.number:
            return Reply(action=action, done="answered")
        return self.turn("\nhigher\n" if guess < self.number else "\nlower\n", action)

    def turn(self, text: str, action: Action | None = None) -> Reply:
        """What the policy reads next; the end, if no guess is left."""
        if not self.left:
            return Reply(action=action, done="turns")
        return Reply(pieces=(Piece(text=text),), action=action, max_tokens=24, stops=("</answer>",))
