/* Grammar masks, computed while a step runs: the tokens that a grammar allows next depend on the
 * output so far, which is known before the step begins. One thread does it; the engine's thread
 * helps where it would only wait for a device. A mask does not depend on the thread that computes
 * it, so this file affects speed only. */
#include <stdlib.h>

#include "runtime/engine/engine_internal.h"

struct Masks {
	pthread_t thread;
	bool has_thread;
	pthread_mutex_t lock;
	pthread_cond_t go, done;
	llmc_sampler **list; /* [most] */
	int32_t n_added;     /* the engine's thread only */
	/* lock */
	int32_t n, next; /* list[next .. n) is not started */
	bool busy, stop;
};

/* Compute the masks that no thread has started. Called with the lock held; the lock is released
 * while a mask is computed. */
static void
make(Masks *m, bool *busy)
{
	while (m->next < m->n) {
		llmc_sampler *s = m->list[m->next++];
		const uint32_t *bits;
		*busy = true;
		pthread_mutex_unlock(&m->lock);
		(void)!sampler_mask(s, &bits,
		                    NULL); /* the sampler calls again and gets the error */
		pthread_mutex_lock(&m->lock);
		*busy = false;
	}
}

static void *
work(void *user)
{
	Masks *m = user;

	pthread_mutex_lock(&m->lock);
	while (!m->stop) {
		make(m, &m->busy);
		pthread_cond_signal(&m->done);
		if (!m->stop && m->next >= m->n)
			pthread_cond_wait(&m->go, &m->lock);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

llmc_status
masks_open(int32_t most, Masks **out, llmc_error *err)
{
	Masks *m = *out = calloc(1, sizeof *m);

	if (!m)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine");
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->go, NULL);
	pthread_cond_init(&m->done, NULL);
	m->list = calloc((size_t)most + 1, sizeof *m->list);
	llmc_status status = m->list ? thread_start(work, m, &m->thread, err)
	                             : error_set(err, LLMC_E_MEMORY, "out of memory for an engine");
	m->has_thread = status == LLMC_OK;
	if (status != LLMC_OK) {
		masks_close(m);
		*out = NULL;
	}
	return status;
}

void
masks_close(Masks *m)
{
	if (!m)
		return;
	if (m->has_thread) {
		pthread_mutex_lock(&m->lock);
		m->stop = true;
		pthread_cond_signal(&m->go);
		pthread_mutex_unlock(&m->lock);
		pthread_join(m->thread, NULL);
	}
	pthread_mutex_destroy(&m->lock);
	pthread_cond_destroy(&m->go);
	pthread_cond_destroy(&m->done);
	free(m->list);
	free(m);
}

void
masks_add(Masks *m, llmc_sampler *s)
{
	m->list[m->n_added++] = s;
}

void
masks_begin(Masks *m)
{
	if (!m->n_added)
		return;
	pthread_mutex_lock(&m->lock);
	m->n = m->n_added;
	m->next = 0;
	pthread_cond_signal(&m->go);
	pthread_mutex_unlock(&m->lock);
}

void
masks_end(Masks *m, bool rest)
{
	bool mine;

	if (!m || !m->n_added)
		return;
	pthread_mutex_lock(&m->lock);
	if (rest)
		make(m, &mine);
	m->n = m->next = 0;
	while (m->busy)
		pthread_cond_wait(&m->done, &m->lock);
	m->n_added = 0;
	pthread_mutex_unlock(&m->lock);
}
