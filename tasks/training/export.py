"""The model as files: a folder that AutoModelForCausalLM and AutoTokenizer load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tasks.training.folder import TrainingFolder
from tasks.training.settings import TrainSettings
from tasks.training.text import BEGIN, SPECIAL, UNKNOWN
from tasks.training.variants import weights_of

if TYPE_CHECKING:
    import torch

OTHER_TASKS = {
    "_name_or_path",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
}


def config_file(model: Any) -> dict[str, Any]:
    """config.json: what tells this model from others, without the settings of tasks that it is not for."""
    config = {k: v for k, v in model.config.to_dict().items() if k not in OTHER_TASKS}
    return {**config, "architectures": [type(model).__name__], "dtype": "float16"}


def halved(model: Any) -> dict[str, torch.Tensor]:
    """The weights in float16, as they are shipped."""
    import torch

    return {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in weights_of(model).items()}


def tokenizer_files(vocabulary: list[str], context: int) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json: one token per character, nothing added in front."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    config = {
        "backend": "tokenizers",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "bos_token": BEGIN,
        "eos_token": BEGIN,
        "pad_token": BEGIN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    return {"tokenizer.json": json.loads(tokenizer.to_str()), "tokenizer_config.json": config}


def export(folder: TrainingFolder, model: Any, vocabulary: list[str], settings: TrainSettings) -> int:
    """Write config, weights and tokenizer. Returns the bytes of the weights."""
    from safetensors.torch import save

    documents = {"config.json": config_file(model), **tokenizer_files(vocabulary, settings.context)}
    for name, content in documents.items():
        folder.write(name, (json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())
    weights = save(halved(model), metadata={"format": "pt"})
    folder.write("model.safetensors", weights)
    return len(weights)
