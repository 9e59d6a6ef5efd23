"""What the policy talks to, in text. No environment ever sees a token id."""
