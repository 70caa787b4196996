"""Looking at models and what they answer, from outside: arrays in, arrays or pictures out."""
