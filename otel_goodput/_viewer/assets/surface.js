// The pixels of the timeline: written by hand and shown with one putImageData a frame, which is what makes it fast.
import { canvasFill, rgb, shade, theme } from "./colors.js";

const WIDE = 32; // pixels
const TILE = 8; // hatchings repeat every 8 pixels

/** Colour and hatching that something is drawn in. `style()` tells them in the present theme. */
export class Paint {
  constructor(title, style) {
    this.title = title;
    this.style = style;
    this.refresh();
  }

  refresh() {
    const style = this.style();
    this.theme = theme();
    this.color = style.color;
    this.solid = style.hatch === "none";
    this.base = packed(rgb(style.color));
    const [red, green, blue] = rgb(style.color);
    this.ink = red * 0.3 + green * 0.59 + blue * 0.11 > 128 ? "#10151a" : "#ffffff";
    this.tile = this.solid ? new Uint32Array(TILE * TILE).fill(this.base) : tilePixels(style);
    this.edge = packed(rgb(shade(style.color, -0.35)));
  }
}

function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function tilePixels(style) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = TILE;
  const context = canvas.getContext("2d");
  context.fillStyle = canvasFill(context, style);
  context.fillRect(0, 0, TILE, TILE);
  return new Uint32Array(context.getImageData(0, 0, TILE, TILE).data.buffer);
}

/** A picture of `width` by `height` device pixels. Coordinates are whole; the high ones are not included. */
export class Surface {
  resize(width, height) {
    if (this.image && this.width === width && this.height === height) return;
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  clear(color) {
    this.background = packed(rgb(color));
    this.pixels.fill(this.background);
  }

  show(context, left, top) {
    context.putImageData(this.image, left, top);
  }

  fill(left, right, top, bottom, color) {
    const value = packed(rgb(color));
    for (let y = Math.max(0, top); y < Math.min(bottom, this.height); y++) {
      this.pixels.fill(value, y * this.width + Math.max(0, left), y * this.width + Math.min(this.width, right));
    }
  }

  rect(left, right, top, bottom, paint) {
    left = Math.max(0, left);
    right = Math.min(this.width, right);
    top = Math.max(0, top);
    bottom = Math.min(this.height, bottom);
    if (left >= right) return;
    const { pixels, width } = this;
    const { tile, base } = paint;
    if (paint.solid && right - left > WIDE) {
      for (let row = top * width, last = bottom * width; row < last; row += width)
        pixels.fill(base, row + left, row + right);
      return;
    }
    // Calls of `fill` for a few pixels each would cost more than the pixels.
    for (let y = top; y < bottom; y++) {
      const row = y * width;
      const line = (y & 7) << 3;
      for (let x = left; x < right; x++) pixels[row + x] = tile[line | (x & 7)];
    }
  }

  /** One column of pixels. */
  column(x, top, bottom, paint) {
    const { pixels, width } = this;
    const { tile } = paint;
    const across = x & 7;
    for (let y = Math.max(0, top), at = y * width + x; y < bottom; y++, at += width) {
      pixels[at] = tile[((y & 7) << 3) | across];
    }
  }

  /** Thin lines over what is there: it is summed up, not single spans. */
  veil(left, right, top, bottom, color) {
    const value = packed(rgb(color));
    const last = Math.min(right, this.width);
    for (let y = Math.max(0, top); y < Math.min(bottom, this.height); y++) {
      const row = y * this.width;
      const first = Math.max(0, left);
      for (let x = first + ((10 - ((first + y) % 10)) % 10); x < last; x += 10) this.pixels[row + x] = value;
    }
  }
}
