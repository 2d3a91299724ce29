"""The recipe of quasar-tiny: text, vocabulary, target, quantisation, draft. Start at `engine.training.recipe`."""
