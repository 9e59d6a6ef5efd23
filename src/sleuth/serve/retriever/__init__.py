"""An index behind the HTTP dialects that trainers speak."""
