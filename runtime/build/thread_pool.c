/* Threads that compile, long sources first, so that no long one runs alone at the end. They block
 * all signals, so that the program's own threads receive them. After one unit has failed they start
 * no other. */

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "runtime/build/kernel_build.h"
#include "runtime/threads/threads.h"

static void *
pool_main(void *arg)
{
	KernelBuild *b = arg;

	for (int n; (n = atomic_fetch_add(&b->next, 1)) < b->n_unit;) {
		const int i = b->order[n];
		BuildUnit *u = &b->unit[i];
		if (u->ready)
			continue;
		u->status = b->kind->compile(b->target, i, &u->error);
		pthread_mutex_lock(&b->lock);
		b->done++;
		u->ready = u->status == LLMC_OK;
		if (!u->ready)
			atomic_store(&b->next, b->n_unit);
		pthread_cond_signal(&b->news);
		pthread_mutex_unlock(&b->lock);
	}
	pthread_mutex_lock(&b->lock);
	b->left++;
	pthread_cond_signal(&b->news);
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static void
sort_units(KernelBuild *b)
{
	for (int i = 0, at; i < b->n_unit; i++) {
		for (at = i; at > 0 && b->unit[b->order[at - 1]].bytes < b->unit[i].bytes; at--)
			b->order[at] = b->order[at - 1];
		b->order[at] = i;
	}
}

void
build_start(KernelBuild *b, const char *name, const char *compiler)
{
	int n = b->opt.n_jobs > 0 ? b->opt.n_jobs : topology_threads();

	b->todo = 0;
	for (int i = 0; i < b->n_unit; i++)
		b->todo += !b->unit[i].ready;
	if (!b->todo)
		return;
	sort_units(b);
	b->jobs = n = n > b->todo ? b->todo : n > BUILD_MAX_JOBS ? BUILD_MAX_JOBS : n;
	log_line(b->opt.log, b->opt.log_user, LLMC_LOG_INFO, "compiling %d kernel%s for %s with %s",
	         b->todo, b->todo == 1 ? "" : "s", name, compiler);
	while (b->n_thread < n && thread_create(&b->thread[b->n_thread], NULL, pool_main, b) == 0)
		b->n_thread++;
	if (!b->n_thread) /* no thread could start: the caller compiles */
		pool_main(b);
}

void
build_poll(KernelBuild *b)
{
	pthread_mutex_lock(&b->lock);
	int done = b->done;
	pthread_mutex_unlock(&b->lock);
	if (done > b->shown && (done == b->todo || done - b->shown >= (b->todo + 7) / 8)) {
		b->shown = done;
		log_line(b->opt.log, b->opt.log_user, LLMC_LOG_PROGRESS,
		         "compiled %d of %d kernels", done, b->todo);
	}
}

static void
join(KernelBuild *b)
{
	for (int i = 0; i < b->n_thread; i++)
		pthread_join(b->thread[i], NULL);
	b->n_thread = 0;
}

llmc_status
build_wait(KernelBuild *b, llmc_error *err)
{
	pthread_mutex_lock(&b->lock);
	while (b->left < b->n_thread) {
		pthread_mutex_unlock(&b->lock);
		build_poll(b);
		pthread_mutex_lock(&b->lock);
		int seen = b->done;
		while (b->left < b->n_thread && b->done == seen)
			pthread_cond_wait(&b->news, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	join(b);
	build_poll(b);
	for (int i = 0; i < b->n_unit; i++)
		if (b->unit[i].status != LLMC_OK) {
			if (err)
				*err = b->unit[i].error;
			return b->unit[i].status;
		}
	if (b->unkept.code != LLMC_OK && !b->opt.cache_warned)
		log_line(b->opt.log, b->opt.log_user, LLMC_LOG_WARNING,
		         "compiled kernels are not kept for the next time: %s (LLMC_CACHE names "
		         "another folder)",
		         b->unkept.text);
	return LLMC_OK;
}

void
build_stop(KernelBuild *b)
{
	atomic_store(&b->next, b->n_unit);
	join(b);
}
