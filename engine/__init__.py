"""The included SM70 engine. `engine.llm.LLM.generate` is the round loop."""
