"""Makes the vocabulary and the model of this folder from words.txt.

They are the work of Marian itself, which the project's environment does not have. In another one,
with `pip install pymarian`, in this folder: python make.py
"""

from pathlib import Path

from pymarian import Trainer

if __name__ == "__main__":
    Trainer(
        "--train-sets words.txt words.txt --vocabs words.vocab.yml words.vocab.yml "
        "--model model.npz --type transformer --dim-emb 8 --transformer-heads 2 "
        "--transformer-dim-ffn 16 --enc-depth 1 --dec-depth 1 --tied-embeddings-all "
        "--cpu-threads 1 --after-batches 1 --mini-batch 2 --max-length 500 --seed 1"
    ).train()
    for other in Path().glob("model.npz.*"):
        other.unlink()
