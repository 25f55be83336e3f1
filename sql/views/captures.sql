-- grain: one row per (capture)
-- One model run over one corpus, and what it cost.
select
    capture,                                              -- the capture's id
    stage_key,                                            -- the capture's key, 64 hex digits: a digest of all that can change a number in it
    name,                                                 -- the name of the capture, as given or derived from model and corpus
    model,                                                -- the model, as the user named it
    model_digest,                                         -- sha256 of weights and configuration (64 hex digits)
    family,                                               -- architecture, as the configuration of the model names it
    norm,                                                 -- norm of the residual stream: layernorm or rmsnorm
    n_layers,                                             -- number of layers L
    n_heads,                                              -- number of query heads of a layer H
    n_kv_heads,                                           -- number of key/value heads of a layer H_kv
    d_model,                                              -- width of the residual stream D
    d_value,                                              -- width of a value vector d_v
    causal,                                               -- true where a query sees no later key
    corpus,                                               -- the corpus, as the user named it
    corpus_digest,                                        -- sha256 of the corpus (64 hex digits)
    tokenizer_digest,                                     -- sha256 of the tokenizer, or of preprocessor_config.json where the model reads images (64 hex digits)
    bos_policy,                                           -- what stands at the start of a window: auto, always or never a BOS token
    window_tokens,                                        -- tokens in a window, its BOS included
    stride_tokens,                                        -- tokens from the start of a window to the start of the next
    n_docs,                                               -- number of documents
    n_tokens,                                             -- number of tokens in all documents
    compute_dtype,                                        -- dtype in which the model ran
    attention_storage,                                    -- how attention is kept: stored, rebuilt or none
    value_dtype,                                          -- dtype in which values are kept: float32, float16 or bfloat16; none if they are not
    device,                                               -- device on which the model ran: cpu, cuda or mps
    bytes,                                                -- bytes of the activation store's shards on disk
    nan_to_null(seconds) as seconds,                      -- seconds from the first to the last tensor of a shard, summed over the shards
    nan_to_null(tokens_per_second) as tokens_per_second,  -- n_tokens / seconds; NULL where seconds is 0
    created_at,                                           -- when the capture was prepared, UTC, ISO 8601
    versions,                                             -- versions of the packages it ran with (JSON)
    config                                                -- every setting of the capture (JSON)
from parts
