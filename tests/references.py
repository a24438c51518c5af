"""transformers' model and tokenizer with our weights and vocabulary, to compare with."""

from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from weighted_clip.encoder.text_model import TextModel
from weighted_clip.encoder.tokenizer import _read_merges, default_tokenizer


def transformers_text_model(model: TextModel, attention: str = "sdpa") -> CLIPTextModel:
    """CLIPTextModel of the same size and weights as ours."""
    config = model.config
    theirs = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_dim,
            intermediate_size=config.mlp_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            max_position_embeddings=config.context_length,
            hidden_act=config.activation,
            layer_norm_eps=config.layer_norm_eps,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            pad_token_id=config.pad_id,
            attn_implementation=attention,
        )
    ).eval()
    ours = model.state_dict()
    theirs.load_state_dict({key: ours[key.removeprefix("text_model.")] for key in theirs.state_dict()})
    return theirs


def transformers_tokenizer() -> CLIPTokenizer:
    """CLIPTokenizer, its vocabulary and merges taken from the file we ship."""
    ours = default_tokenizer()
    vocabulary = {ours.symbol(token_id): token_id for token_id in range(ours.vocab_size)}
    return CLIPTokenizer(vocab=vocabulary, merges=_read_merges(), model_max_length=77)
