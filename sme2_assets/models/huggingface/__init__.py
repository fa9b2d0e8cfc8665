"""Models of Hugging Face transformers: which types there are, how small ones are made, and their parts.

`types.py` reads what transformers registers, without importing it. `configuration.py` makes small
configurations, `inputs.py` makes the inputs that a signature asks for, `networks.py` builds the network or
one of its parts, `language.py` the two programs of a language model. All but `types.py` import torch.
"""
