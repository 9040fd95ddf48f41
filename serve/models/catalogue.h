/* Models that a server may open though it was not started with them: those of a folder
 * (llmc_serve_options.models_dir) and those of llmc_pulled (models_pulled).
 *
 * The folder is read anew by each call, so files may come and go while the server runs. A request
 * for such a name makes a slot for it; the manager thread then reads its description. */
#ifndef LLMC_SERVE_MODELS_CATALOGUE_H
#define LLMC_SERVE_MODELS_CATALOGUE_H

#include <time.h>

#include "serve/models/model.h"

typedef struct FoundModel {
	char *name, *path;
	int64_t bytes; /* size of its files */
	time_t modified;
} FoundModel;

typedef struct FoundModels {
	FoundModel *at;
	size_t n, cap;
	bool failed; /* out of memory */
} FoundModels;

/* List the models that are on the disk, sorted by name, each name once. May wait for the disk.
 * Release it with catalogue_free. */
FoundModels catalogue_list(const Server *s);
void catalogue_free(FoundModels *list);
/* Return an entry by its name, with or without "hf:" and ":latest"; NULL: unknown. */
const FoundModel *catalogue_entry(const FoundModels *list, const char *name);
/* Can clients use models that the server was not started with? */
bool catalogue_is_on(const Server *s);

/* Return the slot of a name, which is made if the catalogue has the name; NULL with a Problem. May
 * wait for the disk. Lock not held. */
Slot *models_find_or_add(Server *s, const char *name, Problem *p);

/* Return the slot of the catalogue's only model, for requests without a name; NULL with a Problem.
 */
Slot *models_only(Server *s, Problem *p);

#endif
