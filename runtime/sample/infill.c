/* llama.cpp's sampler for fill-in-the-middle: keep the tokens that end the middle part, or the
 * tokens of which the model is sure. The probabilities of tokens of which one starts with the bytes
 * of the other are combined. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/sample/sampler.h"

/* maximum number of candidates that are compared, and of their bytes */
enum { COMBINED = 1024, PIECE = 64 };
static const double sure = 0.2;

typedef struct Piece {
	char text[PIECE];
	size_t n;
} Piece;

/* If the bytes of one of two tokens start with those of the other, give the sum of both weights to
 * the likelier one. */
static void
combine(Candidate *cand, int32_t n, const llmc_tokenizer *tok, Piece *piece)
{
	for (int32_t i = 0; i < n; i++) {
		size_t need = 0;
		/* a special token adds no text */
		if (!llmc_token_is_special(tok, cand[i].id) &&
		    llmc_token_bytes(tok, cand[i].id, piece[i].text, PIECE, &need, NULL) == LLMC_OK)
			piece[i].n = need;
	}
	for (int32_t i = 0; i < n; i++)
		for (int32_t k = 0; k < n; k++) {
			if (cand[i].v <= 0)
				break;
			if (k == i || cand[k].v <= 0 || !piece[i].n || piece[i].n > piece[k].n ||
			    memcmp(piece[i].text, piece[k].text, piece[i].n) != 0)
				continue;
			int32_t to = cand[k].v > cand[i].v ? k : i, from = to == k ? i : k;
			cand[to].v += cand[from].v;
			cand[from].v = 0;
		}
}

/* Drop tokens with weights below `least`, except end tokens. Returns the number of tokens left that
 * are not end tokens. */
static int32_t
keep(const ChainOwner *own, Candidate *cand, int32_t n, double least)
{
	int32_t others = 0;

	for (int32_t i = 0; i < n; i++) {
		const bool end = own->is_end(own->sampler, cand[i].id);
		if (!end && cand[i].v < least)
			cand[i].v = 0;
		others += !end && cand[i].v > 0;
	}
	return others;
}

bool
sample_infill(const SampleScratch *m, const ChainOwner *own, int32_t n)
{
	Candidate *cand = m->cand;
	const double all = candidates_sum(cand, n);
	double ends = 0;
	int32_t others;
	Piece *piece;

	for (int32_t i = 0; i < n; i++) {
		cand[i].v = (float)(cand[i].v / all);
		if (own->is_end(own->sampler, cand[i].id))
			ends += cand[i].v;
	}
	if (3 * ends * n > 1 - ends) {
		for (int32_t i = 0; i < n; i++)
			if (!own->is_end(own->sampler, cand[i].id))
				m->work[cand[i].id] = -INFINITY;
		return true;
	}
	const int32_t compared = n < COMBINED ? n : COMBINED;
	if (own->tok) {
		candidates_sort(cand, n, compared);
		piece = calloc((size_t)compared, sizeof *piece);
		if (!piece)
			return false;
		combine(cand, compared, own->tok, piece);
		free(piece);
	}
	others = keep(own, cand, n, sure);
	if (others == 0) {
		/* the model is sure of no token: end the middle, even if an earlier sampler dropped
		 * the end token */
		for (int32_t i = 0; own->end >= 0 && i < n; i++)
			m->work[cand[i].id] = -INFINITY;
		if (own->end >= 0)
			m->work[own->end] = 0;
		return true;
	}
	keep(own, cand, n, candidates_sum(cand, n) / (others + 1));
	for (int32_t i = 0; i < n; i++)
		/* combined weights only select tokens: the tokens keep their logits */
		if (!(cand[i].v > 0))
			m->work[cand[i].id] = -INFINITY;
	return true;
}
