/* Choice between our own kernels over peer memory, with one or two exchanges, and NCCL. All give
 * the same bits, so the fastest one for the message size is used. Times are measured once per kind
 * of machine and kept in $LLMC_CACHE/nccl. One thread of one process measures for all ranks. */
#include "runtime/cuda/comm_algorithm.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "runtime/build/kernel_build.h"

enum { ROUNDS = 3, TIMES = 10 };
static const char mark[8] = "llmc nc3";

CommAlgorithmMode
comm_algorithm_mode(void)
{
	const char *text = getenv("LLMC_NCCL");

	if (!text || !*text || !strcmp(text, "auto"))
		return ALGO_MODE_AUTO;
	return !strcmp(text, "never")    ? ALGO_MODE_OWN
	       : !strcmp(text, "always") ? ALGO_MODE_NCCL
	                                 : ALGO_MODE_UNKNOWN;
}

static int
size_of(int64_t bytes)
{
	int i = 0;

	while (i < N_ALGO_SIZES - 1 && (int64_t)1 << (ALGO_MIN_LOG2_BYTES + i) < bytes)
		i++;
	return i;
}

unsigned
peer_algorithms(void)
{
	const char *text = getenv("LLMC_PEER_SUMS");

	if (!text || !*text || !strcmp(text, "auto"))
		return 1u << ALGO_ONE_SHOT | 1u << ALGO_TWO_SHOT;
	return !strcmp(text, "one-shot")   ? 1u << ALGO_ONE_SHOT
	       : !strcmp(text, "two-shot") ? 1u << ALGO_TWO_SHOT
	                                   : 0;
}

CommAlgorithm
comm_algorithm_best(const CommAlgorithmTimes *w, unsigned set, int64_t bytes)
{
	int best = -1;

	for (int algorithm = 0; algorithm < N_ALGO; algorithm++) {
		int i = size_of(bytes), of = best < 0 ? algorithm : best;
		/* a size that was not measured uses the next smaller one that was */
		while (i > 0 && (w->us[algorithm][i] <= 0 || w->us[of][i] <= 0))
			i--;
		if (set >> algorithm & 1 &&
		    (best < 0 || w->us[algorithm][i] < 0.98f * w->us[best][i]))
			best = algorithm;
	}
	return best < 0 ? ALGO_ONE_SHOT : (CommAlgorithm)best;
}

static llmc_status
cache_path(const char *machine, char key[65], Strbuf *dir, Strbuf *path)
{
	Sha256 sum;

	sha256_init(&sum);
	sha256_add(&sum, machine, strlen(machine) + 1);
	sha256_hex(&sum, key);
	TRY(file_cache_dir(dir, NULL));
	strbuf_puts(dir, "/nccl");
	strbuf_printf(path, "%s/%.32s", strbuf_str(dir), key);
	return dir->failed || path->failed ? LLMC_E_MEMORY : LLMC_OK;
}

static llmc_status
measure(CommAlgorithmTimes *w, unsigned set, int64_t most_bytes, double budget_s,
        comm_algorithm_run_fn run, void *user, llmc_error *err)
{
	const double end = clock_now() + budget_s;

	for (int i = 0; i <= size_of(most_bytes) && i < N_ALGO_SIZES; i++) {
		double best[N_ALGO] = { 0 };
		for (int r = 0; r < ROUNDS && (r == 0 || clock_now() < end); r++)
			/* algorithms take turns, so that a change of clock frequency affects all of
			 * them */
			for (int algorithm = 0; algorithm < N_ALGO; algorithm++) {
				double s = 0;
				if (!(set >> algorithm & 1))
					continue;
				TRY(run(user, (CommAlgorithm)algorithm,
				        (int64_t)1 << (ALGO_MIN_LOG2_BYTES + i), TIMES, &s, err));
				best[algorithm] =
				    r == 0 || s < best[algorithm] ? s : best[algorithm];
			}
		for (int algorithm = 0; algorithm < N_ALGO; algorithm++)
			w->us[algorithm][i] = (float)(best[algorithm] / TIMES * 1e6);
		if (clock_now() > end)
			break;
	}
	return LLMC_OK;
}

llmc_status
comm_algorithm_tune(CommAlgorithmTimes *w, const char *machine, unsigned set, int64_t most_bytes,
                    double budget_s, comm_algorithm_run_fn run, void *user, llmc_error *err)
{
	Strbuf dir = { 0 }, path = { 0 }, held = { 0 };
	llmc_status status = LLMC_OK;
	char key[65];
	bool cache = cache_path(machine, key, &dir, &path) == LLMC_OK;

	if (cache && checked_read(strbuf_str(&path), mark, key, &held, NULL) == LLMC_OK &&
	    held.len == sizeof *w) {
		memcpy(w, held.data, sizeof *w);
	} else {
		status = measure(w, set, most_bytes, budget_s, run, user, err);
		if (status == LLMC_OK && cache &&
		    file_mkdirs_private(strbuf_str(&dir), NULL) == LLMC_OK)
			(void)!checked_write(strbuf_str(&path), mark, key, w, sizeof *w, NULL);
	}
	strbuf_release(&dir);
	strbuf_release(&path);
	strbuf_release(&held);
	return status;
}
