/* Loads a saved sequence, of a small model on the reference, with arbitrary changes. The input is
 * pairs of an offset and a number that is added to the byte at this offset. A sequence that loads
 * can be continued. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static llmc_session *ses;
static uint8_t *saved;
static size_t n_saved;

static void
prepare(void)
{
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_model *m;
	llmc_seq q;
	llmc_error err = { 0 };
	const int32_t tok[] = { 1, 5, 9 };

	o.device = "ref";
	o.random_weights = true;
	lim.context = 64;
	lim.seqs = 2;
	if (llmc_open("configs/tiny.yaml", &o, &m, &err) != LLMC_OK ||
	    llmc_session_open(m, &lim, &ses, &err) != LLMC_OK ||
	    llmc_seq_new(ses, 0, &q, &err) != LLMC_OK ||
	    llmc_forward(ses, &(llmc_chunk){ q, tok, 3, 0 }, 1, NULL, &err) != LLMC_OK) {
		fprintf(stderr, "fuzz_saved: %s\n", err.text);
		abort();
	}
	llmc_seq_save(ses, q, NULL, 0, &n_saved, &err);
	saved = malloc(n_saved);
	if (!saved || llmc_seq_save(ses, q, saved, n_saved, &n_saved, &err) != LLMC_OK)
		abort();
	llmc_seq_free(ses, q);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	llmc_error err = { 0 };
	llmc_seq q = -1;
	const int32_t tok = 3;

	if (!ses)
		prepare();
	if (size < 1)
		return 0;
	/* the header is small, but gets most changes */
	size_t n = data[0] < 250 ? n_saved : n_saved * (size_t)(data[0] - 250) / 6;
	uint8_t *own = malloc(n + 1);
	memcpy(own, saved, n);
	for (size_t i = 1; i + 2 < size; i += 3) {
		size_t at = (size_t)(data[i] | data[i + 1] << 8);
		if (at < n)
			own[at] = (uint8_t)(own[at] + data[i + 2]);
	}
	llmc_status status = llmc_seq_load(ses, own, n, &q, &err);
	if (status == LLMC_OK) {
		if (llmc_forward(ses, &(llmc_chunk){ q, &tok, 1, 0 }, 1, NULL, &err) == LLMC_E_BUG)
			abort();
		llmc_seq_free(ses, q);
	} else if (q != -1 || !err.text[0] || status == LLMC_E_BUG) {
		abort();
	}
	free(own);
	return 0;
}
