/* WordPiece: the longest token at each position of a word; a word that cannot be spelled by tokens
 * becomes the unknown token. WordLevel: the whole word is the token. */
#include "text/text.h"

#include <string.h>

static llmc_status
unknown(Enc *e, ByteSpan word)
{
	if (e->t->unk_id < 0)
		return error_set(e->err, LLMC_E_INPUT,
		                 "the tokenizer cannot spell \"%.*s\", and its unk_token is not in "
		                 "the vocabulary",
		                 word.n > 60 ? 60 : (int)word.n, word.s);
	enc_push(e, e->t->unk_id);
	return LLMC_OK;
}

void
wordpiece_add(llmc_tokenizer *t, ByteSpan token, int32_t id)
{
	const ByteSpan mark = t->word_prefix;

	/* inside a word, the token is looked up together with the mark */
	trie_put(&t->pieces, &t->arena, token, id);
	if (token.n > mark.n && memcmp(token.s, mark.s, mark.n) == 0)
		trie_put(&t->inner, &t->arena, (ByteSpan){ token.s + mark.n, token.n - mark.n },
		         id);
}

llmc_status
wordpiece_encode(Enc *e, ByteSpan word)
{
	const llmc_tokenizer *t = e->t;
	const size_t before = e->n_ids;

	if (utf8_count(word.s, word.n) > (size_t)t->longest_word)
		return unknown(e, word);
	for (size_t i = 0; i < word.n;) {
		const Trie *trie = i ? &t->inner : &t->pieces;
		size_t len;
		const int32_t found = enc_longest(e, trie, word.s + i, word.n - i, &len);
		if (found < 0) {
			e->n_ids = before;
			return unknown(e, word);
		}
		enc_push(e, found);
		i += len;
	}
	return LLMC_OK;
}

llmc_status
wordlevel_encode(Enc *e, ByteSpan word)
{
	const int32_t id = strmap_get(&e->t->vocab, word.s, word.n);

	if (id < 0)
		return unknown(e, word);
	enc_push(e, id);
	return LLMC_OK;
}
