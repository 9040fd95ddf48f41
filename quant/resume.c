/* The output file: finished tensors of a stopped run are recognised by their checksums, and the
 * file is renamed when it is complete. */
#include "quant/quant_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sum64.h"
#include "formats/gguf_write.h"
#include "formats/safetensors.h"

/* Returns a string with everything that the bytes of the result depend on */
static const char *
identity(QuantRun *r)
{
	const QuantJob *job = r->job;
	Sha256 sum;
	struct stat st = { 0 };
	Strbuf *text = arena_strbuf(r->a);

	stat(job->in, &st);
	strbuf_printf(text,
	              "llmc quantize %s\n%s %lld %lld.%09ld\n%s %s %.9g %d %.9g %d %d\n%d %d\n",
	              LLMC_VERSION, job->in, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
	              st.st_mtim.tv_nsec, dtype_text(job->type), dtype_text(job->head), job->bits,
	              job->method, job->damp, job->form, job->group, job->n_window, job->width);
	sha256_init(&sum);
	sha256_add(&sum, strbuf_str(text), text->len);
	if (job->tok)
		sha256_add(&sum, job->tok,
		           (size_t)job->n_window * (size_t)job->width * sizeof *job->tok);
	for (size_t i = 0; job->imatrix && i < job->imatrix->n; i++) {
		const ImatrixEntry *e = &job->imatrix->entry[i];
		sha256_add(&sum, e->name, strlen(e->name) + 1);
		sha256_add(&sum, e->mean, (size_t)(e->cols * e->n_mat) * sizeof *e->mean);
	}
	char *hex = NEW(r->a, char, 65);
	sha256_hex(&sum, hex);
	return hex;
}

static llmc_status
io_error(const QuantRun *r, const char *what, llmc_error *err)
{
	return error_set(err, LLMC_E_IO, "%s: cannot %s: %s%s", r->partial, what, strerror(errno),
	                 errno == ENOSPC ? " (the disk is full)" : "");
}

static llmc_status
put(const QuantRun *r, const void *data, int64_t n, int64_t at, llmc_error *err)
{
	const char *p = data;

	while (n > 0) {
		ssize_t k = pwrite(r->fd, p, (size_t)(n < 1 << 30 ? n : 1 << 30), at);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0) {
			errno = k == 0 ? ENOSPC : errno;
			return io_error(r, "write", err);
		}
		p += k;
		at += k;
		n -= k;
	}
	return LLMC_OK;
}

/* Returns whether a tensor of the list is complete in the file, by its checksum. */
static bool
still_there(const QuantRun *r, const QuantTensor *t, uint64_t sum)
{
	char *data = malloc((size_t)t->bytes + 1);
	int64_t at = 0;
	bool same = false;

	while (data && at < t->bytes) {
		ssize_t k =
		    pread(r->fd, data + at, (size_t)(t->bytes - at), r->data_at + t->offset + at);
		if (k <= 0)
			break;
		at += k;
	}
	if (data && at == t->bytes)
		same = sum64(data, (size_t)t->bytes, 0) == sum;
	free(data);
	return same;
}

llmc_status
run_open(QuantRun *r, llmc_error *err)
{
	const char *own = identity(r);
	char line[1024], name[900];
	unsigned long long sum;
	Strbuf *head = arena_strbuf(r->a);

	if (r->g)
		gguf_head_text(&r->head, head);
	else
		folder_head_text(&r->names, head);
	if (head->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the header of %s",
		                 r->job->out);
	r->data_at = (int64_t)head->len;
	r->job->out_bytes = r->data_at + r->data_bytes;
	FILE *f = fopen(r->done_path, "r");
	bool resume = f && fgets(line, sizeof line, f) && strncmp(line, own, strlen(own)) == 0 &&
	              line[strlen(own)] == '\n';
	r->fd = open(r->partial, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
	if (r->fd < 0) {
		if (f)
			fclose(f);
		return io_error(r, "create", err);
	}
	while (resume && fgets(line, sizeof line, f))
		for (int i = 0; sscanf(line, "%llx %899s", &sum, name) == 2 && i < r->n; i++)
			if (!r->t[i].done && strcmp(r->t[i].in->name, name) == 0 &&
			    still_there(r, &r->t[i], sum)) {
				r->t[i].done = true;
				r->done_bytes += r->t[i].in->bytes;
				r->job->n_resumed++;
			}
	if (f)
		fclose(f);
	errno = posix_fallocate(r->fd, 0, r->job->out_bytes);
	if (errno != 0 && errno != EOPNOTSUPP && errno != EINVAL) {
		llmc_status s = io_error(r, "reserve space for the file", err);
		if (!r->job->n_resumed)
			unlink(r->partial);
		return s;
	}
	TRY(put(r, strbuf_str(head), r->data_at, 0, err));
	if (ftruncate(r->fd, r->job->out_bytes) != 0)
		return io_error(r, "set the size", err);
	r->done = fopen(r->done_path, resume ? "a" : "w");
	if (!r->done || (!resume && fprintf(r->done, "%s\n", own) < 0) || fflush(r->done) != 0)
		return error_set(err, LLMC_E_IO, "%s: cannot write: %s", r->done_path,
		                 strerror(errno));
	return LLMC_OK;
}

llmc_status
run_keep(QuantRun *r, QuantTensor *t, const void *data, llmc_error *err)
{
	TRY(put(r, data, t->bytes, r->data_at + t->offset, err));
	t->done = true;
	r->done_bytes += t->in->bytes;
	if (fprintf(r->done, "%016llx %s\n", (unsigned long long)sum64(data, (size_t)t->bytes, 0),
	            t->in->name) < 0 ||
	    fflush(r->done) != 0)
		return error_set(err, LLMC_E_IO, "%s: cannot write: %s", r->done_path,
		                 strerror(errno));
	if (r->job->progress &&
	    !r->job->progress(r->job->user, t->in->name, r->done_bytes, r->job->in_bytes))
		return error_set(err, LLMC_E_CANCELLED,
		                 "stopped; the same command continues after %s", t->in->name);
	return LLMC_OK;
}

llmc_status
run_finish(QuantRun *r, llmc_error *err)
{
	if (fsync(r->fd) != 0)
		return io_error(r, "write", err);
	if (!r->g) {
		TRY(folder_write_others(r->job->in, r->folder, r->job->form, r->job->group,
		                        r->ignored, r->n_ignored, err));
		if (file_exists(r->job->out) || rename(r->folder, r->job->out) != 0)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: cannot rename the result %s to it: %s", r->job->out,
			                 r->folder, strerror(errno ? errno : EEXIST));
		unlink(r->done_path);
		return LLMC_OK;
	}
	/* link() fails if another program has created the name meanwhile, so no file is
	 * overwritten */
	if (link(r->partial, r->job->out) != 0) {
		if (errno == EEXIST)
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: was created meanwhile and is not overwritten; the result is in "
			    "%s",
			    r->job->out, r->partial);
		if (rename(r->partial, r->job->out) != 0)
			return io_error(r, "rename", err);
	} else {
		unlink(r->partial);
	}
	unlink(r->done_path);
	return LLMC_OK;
}
