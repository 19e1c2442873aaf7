"""Paddle Inference: the model as programs that run without the code of the model.

There are two programs, encoder and decoder.

encoder: source_ids, int64 (sentences, source_len), each row ends in eos
    -> source_padding, bool (sentences, 1, 1, source_len), True where the source is padding;
       for each decoder layer the keys and values of its cross-attention, both float32
       (sentences, heads, source_len, d_k)

decoder: ids, int64 (sentences, width);
       positions, int64 (width,), from 0;
       forbidden, bool (sentences, 1, width, past + width), True where an id must not attend to one
       of the ids before it or of these ids;
       source_padding, and the encoder's keys and values;
       for each layer the keys and values (sentences, heads, past, d_k) of the ids before
    -> logits, float32 (sentences, width, vocabulary), of what may follow each id;
       attention, float32 (sentences, width, source_len), the mean of the heads that word alignments
       are read from;
       the keys and values of the ids before and of these ids, (sentences, heads, past + width, d_k)

Every dimension may have any length above 0, and `past` may also be 0. Therefore one program serves
two purposes. In a step of a search, the ids of a sentence are the last ids of its hypotheses, all
at one position. To score a target, its ids are given at once, one after another.
"""

from transformer_mt.backends.backend import Backend

# The names of the programs, and the suffixes of their files: the graph and the weights.
ENCODER, DECODER = "encoder", "decoder"
SUFFIXES = (".json", ".pdiparams")


BACKEND = Backend(
    title="Paddle Inference",
    name="paddle_inference",
    export_format="paddle",
    export_file=f"{DECODER}{SUFFIXES[0]}",
    reasons={
        "copying": "the program of the decoder generates subwords, and can't copy them",
        "non_autoregressive": "the program of the decoder predicts one subword after another",
    },
)
