/* A lock for the processors of a model, taken in turns. Without it, steps of the model's engines
 * and images of its vision tower would run at the same time and wait for each other's threads at
 * every barrier. Turns are given in order of arrival, so neither side waits for more than one turn
 * of the other. */
#include "runtime/state/session_state.h"

void
fair_lock_init(FairLock *t)
{
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->next, NULL);
}

void
fair_lock_release(FairLock *t)
{
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->next);
}

void
runtime_lock_processors(Runtime *rt)
{
	FairLock *t = &rt->processors;

	pthread_mutex_lock(&t->lock);
	for (uint64_t own = t->last++; t->first != own;)
		pthread_cond_wait(&t->next, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

void
runtime_unlock_processors(Runtime *rt)
{
	FairLock *t = &rt->processors;

	pthread_mutex_lock(&t->lock);
	t->first++;
	if (t->first != t->last)
		pthread_cond_broadcast(&t->next);
	pthread_mutex_unlock(&t->lock);
}
