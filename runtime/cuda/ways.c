/* Our own kernels over peers' memory, or NCCL: both make the same bits, so the faster one goes, by the size of the message. It is measured once for a
 * kind of machine and kept in $LLMC_CACHE/nccl. A rank's processes may choose otherwise than another's only if they measure apart: one thread of one
 * process measures for all ranks. */
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
static const char mark[8] = "llmc nc2";

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

bool
ways_nccl(const Ways *w, int64_t bytes)
{
	int i = size_of(bytes);

	while (i > 0 && w->us[0][i] <= 0) /* larger ones: as the last that was measured */
		i--;
	return w->us[1][i] < 0.98f * w->us[0][i];
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
measure(Ways *w, int64_t most_bytes, ways_run_fn run, void *user, llmc_error *err)
{
	const double end = clock_now() + BUDGET_S;

	for (int i = 0; i <= size_of(most_bytes) && i < WAYS_SIZES; i++) {
		double best[2] = { 1e9, 1e9 };
		for (int r = 0; r < ROUNDS && (r == 0 || clock_now() < end); r++)
			for (int way = 0; way < 2; way++) { /* by turns */
				double s = 0;
				TRY(run(user, way == 1, (int64_t)1 << (WAYS_FROM + i), TIMES, &s, err));
				best[way] = s < best[way] ? s : best[way];
			}
		for (int way = 0; way < 2; way++)
			w->us[way][i] = (float)(best[way] / TIMES * 1e6);
		if (clock_now() > end)
			break;
	}
	return LLMC_OK;
}

llmc_status
ways_choose(Ways *w, const char *machine, int64_t most_bytes, ways_run_fn run, void *user, llmc_error *err)
{
	Strbuf      dir = { 0 }, path = { 0 }, held = { 0 };
	llmc_status status = LLMC_OK;
	char        key[65];
	bool        cache = cache_path(machine, key, &dir, &path) == LLMC_OK;

	if (cache && sealed_read(strbuf_str(&path), mark, key, &held, NULL) == LLMC_OK && held.len == sizeof *w) {
		memcpy(w, held.data, sizeof *w);
	} else {
		status = measure(w, most_bytes, run, user, err);
		if (status == LLMC_OK && cache && file_mkdirs_private(strbuf_str(&dir), NULL) == LLMC_OK)
			(void)!sealed_write(strbuf_str(&path), mark, key, w, sizeof *w, NULL);
	}
	strbuf_release(&dir);
	strbuf_release(&path);
	strbuf_release(&held);
	return status;
}
