/* Steps that all parts of a quantisation use: finding a tensor, keeping a result, calibrating. */
#include "quant/quant_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

QuantTensor *
run_tensor(const QuantRun *r, const char *name)
{
	for (int i = 0; i < r->n; i++)
		if (strcmp(r->t[i].in->name, name) == 0)
			return &r->t[i];
	return NULL;
}

llmc_status
run_keep_blocks(QuantRun *r, QuantTensor *t, const uint8_t *blocks, llmc_error *err)
{
	if (!t->n_part)
		return run_keep(r, t, blocks, err);
	uint8_t *parts = malloc((size_t)t->bytes);
	if (!parts)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %s", t->in->name);
	folder_from_blocks(t->to, blocks, rows_of(t->in), t->in->dim[0], parts);
	llmc_status s = run_keep(r, t, parts, err);
	free(parts);
	return s;
}

static bool
on_window(void *user, int32_t done, int32_t of)
{
	const QuantJob *job = user;
	return !job->progress || job->progress(job->user, NULL, done, of);
}

llmc_status
quant_calibrate(QuantJob *job, llmc_error *err)
{
	double t0 = clock_now();
	llmc_status s = calibration_run(job->calibration, job->session, job->threads, job->tok,
	                                job->n_window, job->width, on_window, job, err);

	job->calibrate_s += clock_now() - t0;
	return s;
}
