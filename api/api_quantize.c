/* llmc_quantize: tokenizes the calibration corpus, opens the model with unfused steps, so that
 * inputs of matrices can be probed, and starts the job of quant/. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api_eval.h"
#include "base/file.h"
#include "base/sized_struct.h"
#include "base/text.h"
#include "quant/write_gguf.h"
#include "quant/quantize_model.h"

enum { WINDOW = 512, N_WINDOWS = 64, OUT_SHARE = 8 };

typedef struct OutputFile {
	Arena arena;
	QuantJob job;
	llmc_model *model;
	Windows windows;
	/* 16-bit GGUF made from a folder, kept next to the result until the result is complete;
	 * NULL: none */
	const char *whole;
} OutputFile;

static llmc_status
method_of(const char *name, QuantMethod *out, llmc_error *err)
{
	static const char *const names[] = { "nearest", "weighted", "gptq", "awq" };

	for (int i = 0; i < 4; i++)
		if (strcmp(name, names[i]) == 0) {
			*out = (QuantMethod)i;
			return LLMC_OK;
		}
	return error_set(err, LLMC_E_INPUT, "%s: unknown method; known: nearest weighted gptq awq",
	                 name);
}

/* Open a session with a probe. Logits are computed for only a part of each chunk: enough to see the
 * inputs of the head. */
static llmc_status
open_calibration(OutputFile *m, const llmc_quantize_options *o, bool looks, llmc_error *err)
{
	llmc_options mo = LLMC_INIT(llmc_options);
	llmc_limits lim = LLMC_INIT(llmc_limits);
	QuantJob *job = &m->job;

	mo.n_threads = o->n_threads;
	mo.log = o->log;
	mo.log_user = o->log_user;
	mo.no_weights = !looks;
	TRY(model_open_unfused(job->in, &mo, &m->model, err));
	job->plan = m->model->plan;
	if (!looks)
		return LLMC_OK;
	const int64_t most = m->model->plan->hard_limit ? m->model->plan->max_positions : INT32_MAX;
	const int32_t window = o->window ? o->window : WINDOW < most ? WINDOW : (int32_t)most;
	if (window > most)
		return error_set(err, LLMC_E_RANGE, "window %d: the model has %lld positions",
		                 window, (long long)most);
	TRY(text_windows(m->model, o->text, o->n_bytes, "calibration", window, o->n_windows,
	                 &m->windows, err));
	lim.context = lim.chunk = window;
	lim.n_out = window / OUT_SHARE > 0 ? window / OUT_SHARE : 1;
	lim.n_threads = o->n_threads;
	TRY(session_open(m->model->rt, &lim, &job->session, err));
	job->calibration = calibration_new(m->model->plan, &m->arena);
	job->tok = m->windows.tok;
	job->n_window = m->windows.n;
	job->width = m->windows.width;
	return LLMC_OK;
}

static llmc_status
write_imatrix(OutputFile *m, const llmc_quantize_options *o, llmc_error *err)
{
	Imatrix found = { 0 };

	if (!calibration_whole(m->job.calibration))
		TRY(quant_calibrate(&m->job, err));
	calibration_imatrix(m->job.calibration, &m->arena, &found);
	return imatrix_write(o->imatrix_out, &found, o->text ? "text" : "llmc calibration.txt",
	                     m->windows.n, m->windows.width, err);
}

/* ---- a folder as a GGUF ---- */

/* True if no file of the folder is newer than the GGUF made from it. */
static bool
is_fresh(OutputFile *m, const char *file, const char *folder)
{
	struct stat own, st;
	DIR *dir;
	bool fresh = stat(file, &own) == 0;

	if (!fresh || !(dir = opendir(folder)))
		return false;
	for (struct dirent *e; (e = readdir(dir));)
		if (stat(arena_printf(&m->arena, "%s/%s", folder, e->d_name), &st) == 0 &&
		    S_ISREG(st.st_mode) &&
		    (st.st_mtim.tv_sec > own.st_mtim.tv_sec ||
		     (st.st_mtim.tv_sec == own.st_mtim.tv_sec &&
		      st.st_mtim.tv_nsec > own.st_mtim.tv_nsec)))
			fresh = false;
	closedir(dir);
	return fresh;
}

/* Convert a folder to the GGUF `path`, with matrices of a 16-bit type or of their own types */
static llmc_status
as_gguf(OutputFile *m, const char *folder, const char *path, Dtype type,
        const llmc_quantize_options *o, llmc_error *err)
{
	ConvertJob c = { .folder = folder,
		         .out = path,
		         .type = type,
		         .progress = o->progress,
		         .user = o->user,
		         .log = o->log,
		         .log_user = o->log_user };

	TRY(convert_gguf(&c, err));
	m->job.n_tensor = c.n_tensor;
	m->job.in_bytes = c.in_bytes;
	m->job.out_bytes = c.out_bytes;
	m->job.weights = c.weights;
	m->job.weight_bytes = c.weight_bytes;
	return LLMC_OK;
}

static llmc_status
run(OutputFile *m, const char *in, const char *out, const llmc_quantize_options *o, llmc_error *err)
{
	QuantJob *job = &m->job;
	Imatrix *given = NEW(&m->arena, Imatrix, 1);

	SourceKind kind;
	TRY(source_kind(in, &kind, err));
	if (kind != SOURCE_GGUF && kind != SOURCE_HF)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: neither a GGUF file nor a folder of safetensors; llmc "
		                 "quantizes only these",
		                 in);
	/* a folder is converted to GGUF */
	const bool over = kind == SOURCE_HF && ends_with(out, ".gguf");
	if (kind == SOURCE_HF && !over) {
		job->form = folder_form(o->type ? o->type : "int4");
		if (job->form == FOLDER_NONE)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: not a type for a folder; known: " FOLDER_WORDS
			                 "; for the other types name an output that ends in .gguf",
			                 o->type);
	} else if (o->type && folder_form(o->type) != FOLDER_NONE &&
	           dtype_from_text(o->type) == DT_NONE) {
		return error_set(err, LLMC_E_INPUT,
		                 "%s: this type is for folders of safetensors, but %s is a GGUF",
		                 o->type, over ? out : in);
	} else if (o->bits > 0 && o->type) {
		return error_set(err, LLMC_E_INPUT,
		                 "bits and type exclude each other: %s for all matrices, or types "
		                 "selected for %g bits on average",
		                 o->type, (double)o->bits);
	} else if (o->bits == 0) {
		TRY(quant_type(o->type ? o->type : "q4_k", &job->type, err));
	}
	if (o->bits < 0 || !(o->bits <= 16) || (o->bits > 0 && job->form != FOLDER_NONE))
		return error_set(
		    err, LLMC_E_INPUT,
		    o->bits > 0 && o->bits <= 16
		        ? "bits %g: types are selected only for a GGUF, not for a folder"
		        : "bits %g: expected more than 0 and at most 16",
		    (double)o->bits);
	if (o->group != 0 && o->group != 32 && o->group != 128)
		return error_set(err, LLMC_E_RANGE, "group %d: expected 32 or 128", o->group);
	job->group = o->group;
	job->type = o->bits > 0 ? DT_NONE : job->type;
	job->head = DT_NONE;
	if (o->bits == 0 || o->head)
		TRY(quant_type(o->head ? o->head : "q6_k", &job->head, err));
	TRY(method_of(o->method ? o->method : "gptq", &job->method, err));
	if ((o->window && o->window < 2) || o->n_windows < 1 || o->damp < 0 || !(o->damp <= 1))
		return error_set(err, LLMC_E_RANGE, "window, windows or damp out of range");
	if (file_exists(out)) /* check this before the minutes that calibration takes */
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s exists and is not overwritten; remove it or choose another name", out);
	/* the name of a folder may end in a slash */
	char *name = arena_strdup(&m->arena, out);
	for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--)
		name[n - 1] = 0;
	/* f16 and bf16 need no quantisation: convert directly */
	const bool plain = over && o->bits == 0 && dtype_info(job->type)->block_elems == 1;
	if (over) {
		m->whole = plain ? NULL : arena_printf(&m->arena, "%s.partial.16.gguf", name);
		if (plain)
			return as_gguf(m, in, name, job->type, o, err);
		if (!is_fresh(m, m->whole, in))
			TRY(as_gguf(m, in, m->whole, DT_NONE, o, err));
		job->in_bytes = job->out_bytes = job->weights = job->weight_bytes = 0;
	}
	job->in = over ? m->whole : in;
	job->out = name;
	job->damp = (double)o->damp;
	job->hessian_bytes = o->hessian_bytes;
	job->bits = (double)o->bits;
	job->progress = o->progress;
	job->chose = o->chose;
	job->user = o->user;
	job->log = o->log;
	job->log_user = o->log_user;
	if (o->imatrix) {
		TRY(imatrix_read(o->imatrix, &m->arena, given, err));
		job->imatrix = given;
	}
	TRY(threads_open(o->n_threads, &job->threads, err));
	bool looks = job->method == QUANT_GPTQ ||
	             ((job->method == QUANT_WEIGHTED || job->method == QUANT_AWQ) && !o->imatrix) ||
	             o->imatrix_out || o->bits > 0;
	if (looks || job->form != FOLDER_NONE || job->method == QUANT_AWQ)
		TRY(open_calibration(m, o, looks, err));
	if (o->imatrix_out && job->method != QUANT_GPTQ)
		TRY(write_imatrix(m, o, err));
	if (job->method == QUANT_NEAREST && o->bits == 0)
		session_close(job->session), job->session = NULL;
	TRY(quant_run(job, &m->arena, err));
	if (o->imatrix_out && job->method == QUANT_GPTQ)
		TRY(write_imatrix(m, o, err));
	return LLMC_OK;
}

llmc_status
llmc_quantize(const char *in, const char *out, const llmc_quantize_options *opt,
              llmc_quantize_result *res, llmc_error *err)
{
	llmc_quantize_options o = LLMC_INIT(llmc_quantize_options);
	llmc_error own = { 0 };
	double t0 = clock_now();
	llmc_status status;

	SIZED_TAKE(o, opt);
	o.n_windows = o.n_windows ? o.n_windows : N_WINDOWS;
	o.hessian_bytes = o.hessian_bytes ? o.hessian_bytes : (int64_t)512 << 20;
	o.n_threads = o.n_threads ? o.n_threads : topology_threads();
	OutputFile *m = calloc(1, sizeof *m);
	if (!m)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	arena_init(&m->arena);
	if (setjmp(m->arena.oom))
		status =
		    error_set(&own, LLMC_E_MEMORY, "%s: out of memory while quantising it", in);
	else
		status = run(m, in, out, &o, &own);
	if (status == LLMC_OK) {
		const QuantJob *j = &m->job;
		llmc_quantize_result r = LLMC_INIT(llmc_quantize_result);
		r.n_tensors = j->n_tensor;
		r.n_quantized = j->n_quantised;
		r.n_resumed = j->n_resumed;
		r.in_bytes = j->in_bytes;
		r.out_bytes = j->out_bytes;
		r.bits = j->weights ? 8.0 * (double)j->weight_bytes / (double)j->weights : 0;
		r.calibrate_s = j->calibrate_s;
		r.seconds = clock_now() - t0;
		SIZED_GIVE(res, r);
	} else if (err) {
		*err = own;
	}
	if (m->job.calibration)
		calibration_release(m->job.calibration);
	session_close(m->job.session);
	threads_close(m->job.threads);
	llmc_close(m->model);
	/* after a cancellation the file is kept, so that the job can resume */
	if (m->whole && status != LLMC_E_CANCELLED)
		unlink(m->whole);
	free(m->windows.tok);
	arena_release(&m->arena);
	free(m);
	return status;
}
