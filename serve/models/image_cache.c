#include "serve/models/image_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct KeptImage {
	char hash[65];
	llmc_tower_image *image;
	int64_t bytes;
	int refs;
	KeptImage *next; /* next less recently used image */
};

struct ImageCache {
	pthread_mutex_t lock;
	KeptImage *first;
	int64_t bytes, max_bytes; /* bytes: size of all images, including images in use */
};

ImageCache *
image_cache_open(int64_t max_bytes)
{
	ImageCache *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->max_bytes = max_bytes;
	return c;
}

static void
drop(ImageCache *c, KeptImage **at)
{
	KeptImage *k = *at;

	*at = k->next;
	c->bytes -= k->bytes;
	llmc_tower_image_close(k->image);
	free(k);
}

/* Drop unused images, least recently used first, until the others fit. */
static void
evict(ImageCache *c)
{
	while (c->bytes > c->max_bytes) {
		KeptImage **last = NULL;
		for (KeptImage **at = &c->first; *at; at = &(*at)->next)
			if (!(*at)->refs)
				last = at;
		if (!last)
			return;
		drop(c, last);
	}
}

void
image_cache_close(ImageCache *c)
{
	if (!c)
		return;
	while (c->first)
		drop(c, &c->first);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

KeptImage *
image_cache_find(ImageCache *c, const char *hash)
{
	KeptImage *k = NULL;

	pthread_mutex_lock(&c->lock);
	for (KeptImage **at = &c->first; *at; at = &(*at)->next)
		if (strcmp((*at)->hash, hash) == 0) {
			k = *at;
			*at = k->next;
			k->next = c->first;
			c->first = k;
			k->refs++;
			break;
		}
	pthread_mutex_unlock(&c->lock);
	return k;
}

KeptImage *
image_cache_add(ImageCache *c, const char *hash, llmc_tower_image *im, int64_t bytes)
{
	KeptImage *k = calloc(1, sizeof *k);

	if (!k)
		return NULL;
	memcpy(k->hash, hash, sizeof k->hash);
	k->image = im;
	k->bytes = bytes;
	k->refs = 1;
	pthread_mutex_lock(&c->lock);
	k->next = c->first;
	c->first = k;
	c->bytes += bytes;
	evict(c);
	pthread_mutex_unlock(&c->lock);
	return k;
}

void
image_cache_unref(ImageCache *c, KeptImage *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&c->lock);
	k->refs--;
	evict(c);
	pthread_mutex_unlock(&c->lock);
}

const llmc_tower_image *
kept_image(const KeptImage *k)
{
	return k->image;
}
