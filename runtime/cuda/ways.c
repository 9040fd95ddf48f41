/* Our own kernels over peers' memory, in one step or in two, or NCCL: all make the same bits, so the fastest one goes, by the size of the message. It is
 * measured once for a kind of machine and kept in $LLMC_CACHE/nccl. One thread of one process measures for all ranks. */
#include "runtime/cuda/ways.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "runtime/build/build.h"

#define BUDGET_S 1.0
enum { ROUNDS = 3, TIMES = 10 };
static const char mark[8] = "llmc nc3";

WaysWanted
ways_wanted(void)
{
	const char *text = getenv("LLMC_NCCL");

	if (!text || !*text || !strcmp(text, "auto"))
		return WAYS_AUTO;
	return !strcmp(text, "never") ? WAYS_OWN : !strcmp(text, "always") ? WAYS_NCCL : WAYS_UNKNOWN;
}

static int
size_of(int64_t bytes)
{
	int i = 0;

	while (i < WAYS_SIZES - 1 && (int64_t)1 << (WAYS_FROM + i) < bytes)
		i++;
	return i;
}

unsigned
ways_of_peers(void)
{
	const char *text = getenv("LLMC_PEER_SUMS");

	if (!text || !*text || !strcmp(text, "auto"))
		return 1u << WAY_ONE_SHOT | 1u << WAY_TWO_SHOT;
	return !strcmp(text, "one-shot") ? 1u << WAY_ONE_SHOT : !strcmp(text, "two-shot") ? 1u << WAY_TWO_SHOT : 0;
}

Way
ways_best(const Ways *w, unsigned set, int64_t bytes)
{
	int best = -1;

	for (int way = 0; way < N_WAY; way++) {
		int i = size_of(bytes), of = best < 0 ? way : best;
		while (i > 0 && (w->us[way][i] <= 0 || w->us[of][i] <= 0)) /* larger ones: as the last that was measured */
			i--;
		if (set >> way & 1 && (best < 0 || w->us[way][i] < 0.98f * w->us[best][i]))
			best = way;
	}
	return best < 0 ? WAY_ONE_SHOT : (Way)best;
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
measure(Ways *w, unsigned set, int64_t most_bytes, ways_run_fn run, void *user, llmc_error *err)
{
	const double end = clock_now() + BUDGET_S;

	for (int i = 0; i <= size_of(most_bytes) && i < WAYS_SIZES; i++) {
		double best[N_WAY] = { 0 };
		for (int r = 0; r < ROUNDS && (r == 0 || clock_now() < end); r++)
			for (int way = 0; way < N_WAY; way++) { /* by turns */
				double s = 0;
				if (!(set >> way & 1))
					continue;
				TRY(run(user, (Way)way, (int64_t)1 << (WAYS_FROM + i), TIMES, &s, err));
				best[way] = r == 0 || s < best[way] ? s : best[way];
			}
		for (int way = 0; way < N_WAY; way++)
			w->us[way][i] = (float)(best[way] / TIMES * 1e6);
		if (clock_now() > end)
			break;
	}
	return LLMC_OK;
}

llmc_status
ways_choose(Ways *w, const char *machine, unsigned set, int64_t most_bytes, ways_run_fn run, void *user, llmc_error *err)
{
	Strbuf      dir = { 0 }, path = { 0 }, held = { 0 };
	llmc_status status = LLMC_OK;
	char        key[65];
	bool        cache = cache_path(machine, key, &dir, &path) == LLMC_OK;

	if (cache && sealed_read(strbuf_str(&path), mark, key, &held, NULL) == LLMC_OK && held.len == sizeof *w) {
		memcpy(w, held.data, sizeof *w);
	} else {
		status = measure(w, set, most_bytes, run, user, err);
		if (status == LLMC_OK && cache && file_mkdirs_private(strbuf_str(&dir), NULL) == LLMC_OK)
			(void)!sealed_write(strbuf_str(&path), mark, key, w, sizeof *w, NULL);
	}
	strbuf_release(&dir);
	strbuf_release(&path);
	strbuf_release(&held);
	return status;
}
