/* Geometry of preprocessing: sizes of an image after each step, and the tiles that it is cut into.
 * Arithmetic follows the processors, in doubles, so that sizes are equal at every rounding. */
#ifndef LLMC_IMAGE_LAYOUT_H
#define LLMC_IMAGE_LAYOUT_H

#include "image/prepare.h"
#include "image/resample.h"

enum { LAYOUT_STEPS = 2 };

typedef struct ImageSize {
	int32_t height, width;
} ImageSize;

/* A tile: part of the original or of the base image, resized */
typedef struct ImageView {
	bool of_base;
	ImageBox part;
	ImageSize size;
} ImageView;

/* original -> [square with the mean colour] -> resized, once or twice -> canvas = base image */
typedef struct ImageLayout {
	/* size of the original; with pad_square: of the square around it */
	ImageSize original;
	int32_t paste_y, paste_x; /* position of the image in the square */
	int32_t n_step;
	ImageSize step[LAYOUT_STEPS];
	/* part of the last step's image that is kept; black outside of that image */
	ImageBox canvas;
	int32_t tiles_h, tiles_w;
	int32_t n_view, cap;
	ImageView *view;
} ImageLayout;

llmc_status image_layout(const ImageRules *r, int32_t width, int32_t height, ImageLayout *out,
                         llmc_error *err);
void image_layout_release(ImageLayout *l);

#endif
