"""transformers' own `generate` with speculative decoding inside; what comes back is what it always returns.

The model here is random and tiny. With your own: AutoModelForCausalLM.from_pretrained(...), and drop the rest.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof import hf_generate

if __name__ == "__main__":
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        initializer_range=0.3,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    prompts = torch.tensor([[5, 6, 7, 5, 6], [0, 0, 9, 8, 9]])
    mask = (prompts != 0).long()
    settings = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False}
    plain = model.generate(prompts, **settings)
    for drafter in ("ngram:min=1", "early-exit:layer=2,gamma=4"):
        ours = model.generate(prompts, custom_generate=hf_generate, drafter=drafter, **settings)
        print(f"{drafter}: same tokens: {torch.equal(plain, ours)}")
