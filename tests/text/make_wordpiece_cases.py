"""Texts with the ids that Hugging Face's `tokenizers` gives them, for test_wordpiece.py.

    python -m tests.text.make_wordpiece_cases        # with `tokenizers` installed, once

A small vocabulary is trained on English pages of this project and on the texts themselves.
"""

import json
import random
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BY_HAND = [
    "", " ", "Unaffordable café!", "naïve RÉSUMÉ, Ångström", "don't we've I'm they're it's",
    "tabs\tand\r\nlines  and  spaces", "zero\0width\u200bjoiner\u200d and \ufeffmarks \ufffd",
    "no\u00a0break\u3000space\u2028line", "東京は日本の首都です。", "中文abc混合", "한국어 텍스트",
    "Ελληνικά ΣΊΣΥΦΟΣ Σ", "İstanbul ısı", "Straße ẞ", "e\u0301 vs é", "\x1c\x1d\x85control",
    "a[MASK]b [CLS] [mask] [SEP][SEP]", "price: $3.50 (50% off) #1 @home ~x^y`z|", "x" * 100,
    "x" * 101, "ﬁne ﬂow ½ ² ™", "«quoted» „text“ – dash — … ‽", "नमस्ते दुनिया", "שָׁלוֹם עולם",
    "😀 emoji 👍🏽 family 👨‍👩‍👧", "\U000e0001tag \ue000private",
    "₀¹²", "don ' t", "A . B , C ! D ? E",
]  # fmt: skip


def texts():
    """Texts by hand, lines of a page, and random characters of the oldest Unicode that Python has,
    about which no version differs."""
    rng = random.Random(0)
    old = [c for c in map(chr, range(0x30000)) if unicodedata.ucd_3_2_0.category(c)[0] not in "CN"]
    pools = [old, [chr(c) for c in range(32, 0x250)], list("ΑΣσςİıẞßǺé a'.,[]\u0301\u200b\t")]
    lines = [
        line for line in (ROOT / "docs/guides/threads.md").read_text("utf-8").splitlines() if line
    ]
    drawn = ["".join(rng.choices(rng.choice(pools), k=rng.randrange(1, 25))) for _ in range(80)]
    return BY_HAND + rng.sample(lines, 20) + drawn


def tokenizer(lowercase, strip_accents, chinese):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import WordPieceTrainer

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=700, special_tokens=SPECIAL, limit_alphabet=250, show_progress=False
    )
    pages = [(ROOT / "docs/guides/threads.md").read_text("utf-8"), *BY_HAND * 3]
    made.train_from_iterator(pages, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.decoder = decoders.WordPiece()
    return made


def main():
    cases = []
    for options in ((True, None, True), (False, None, False), (True, False, True)):
        made = tokenizer(*options)
        ids = [made.encode(text).ids for text in texts()]
        decoded = [made.decode(each) for each in ids]
        encoded = [list(each) for each in zip(texts(), ids, decoded, strict=True)]
        cases.append({"tokenizer": json.loads(made.to_str()), "texts": encoded})
    text = json.dumps(cases, separators=(",", ":"))
    (Path(__file__).parent / "wordpiece_cases.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
