// Everything that is drawn: views, the map, lines and the band of the timeline.

export function frameCanvas(bytes, [height, width]) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const pixels = new ImageData(width, height);
  for (let i = 0, j = 0; i < bytes.length; i += 3, j += 4) {
    pixels.data[j] = bytes[i];
    pixels.data[j + 1] = bytes[i + 1];
    pixels.data[j + 2] = bytes[i + 2];
    pixels.data[j + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// A canvas as many pixels large as it has on the screen.
export function sharp(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio)), height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  return pen;
}

export function drawView(canvas, frame, words, colours) {
  const pen = sharp(canvas), width = canvas.clientWidth, height = canvas.clientHeight;
  if (frame) {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(frame, 0, 0, width, height);
  } else {
    pen.fillStyle = colours.soft;
    pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.fillText(words, width / 2, height / 2);
  }
}

export function drawMap(canvas, state, colours) {
  const { place, moments, cursor, truth, lit, way, found } = state;
  const pen = sharp(canvas), side = canvas.clientWidth;
  const now = moments[cursor];
  if (!place || !now) return;
  const at = ([x, y]) => [x * side, y * side];
  const shown = moments.slice(0, cursor + 1);

  if (truth && place.picture) {
    pen.imageSmoothingEnabled = place.view === 0;
    pen.drawImage(place.picture, 0, 0, side, side);
    pen.fillStyle = colours.veil;
    pen.fillRect(0, 0, side, side);
  } else if (place.view) {  // what it remembers, each view where it thinks that it was seen
    pen.imageSmoothingEnabled = false;
    const wide = place.view * side;
    for (const moment of shown) {
      if (!moment.memorised || !moment.here) continue;
      const [x, y] = at(moment.here);
      pen.drawImage(moment.real, x - wide / 2, y - wide / 2, wide, wide);
    }
    pen.fillStyle = colours.veil;
    pen.fillRect(0, 0, side, side);
  }

  const line = (points, colour, width, dash = []) => {
    pen.beginPath();
    points.forEach((point, i) => (i ? pen.lineTo(...at(point)) : pen.moveTo(...at(point))));
    pen.lineJoin = pen.lineCap = "round";
    pen.setLineDash(dash);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.stroke();
    pen.setLineDash([]);
  };
  const halo = (points, colour, width, dash) => {
    line(points, colours.halo, width + 2.5);
    line(points, colour, width, dash);
  };
  const real = shown.filter((moment) => !moment.dream);
  if (truth) halo(real.filter((moment) => moment.true).map((moment) => moment.true), colours.true, 5);
  halo(real.filter((moment) => moment.here).map((moment) => moment.here), colours.inferred, 2);
  let run = [];
  shown.forEach((moment, i) => {  // each dream by itself
    if (moment.dream && moment.here) run.push(moment.here);
    if (run.length && (!moment.dream || moment.action === null || i === shown.length - 1)) {
      if (moment.dream && moment.action === null && run.length > 1) {
        halo(run.slice(0, -1), colours.dreamt, 2, [5, 4]);
        run = run.slice(-1);
        if (i < shown.length - 1) return;
      }
      halo(run, colours.dreamt, 2, [5, 4]);
      if (!moment.dream) run = [];
    }
  });
  if (way) halo(way.path, colours.ink, 1.5, [2, 5]);

  const dot = (point, radius, fill, rim = colours.rim, width = 1) => {
    pen.beginPath();
    pen.arc(...at(point), radius, 0, 7);
    pen.fillStyle = fill;
    pen.fill();
    pen.lineWidth = width;
    pen.strokeStyle = rim;
    pen.stroke();
  };
  const small = Math.max(2, side / 150);
  let last = null;
  for (const moment of shown) {  // where dots would cover each other, some stand for all
    if (!moment.memorised || !moment.here) continue;
    if (last && Math.hypot(last[0] - moment.here[0], last[1] - moment.here[1]) * side < 6 * small) continue;
    dot(moment.here, small, colours.dot);
    last = moment.here;
  }
  const heading = (pose, colour, size) => {
    const [x, y] = at(pose), h = pose[2];
    pen.beginPath();
    for (const [turn, r] of [[0, 1], [2.5, 0.9], [Math.PI, 0.35], [-2.5, 0.9]]) {
      pen.lineTo(x + size * r * Math.cos(h + turn), y - size * r * Math.sin(h + turn));
    }
    pen.closePath();
    pen.fillStyle = colour;
    pen.fill();
    pen.lineWidth = 1.5;
    pen.strokeStyle = colours.halo;
    pen.stroke();
  };
  const frame = (pose, colour) => {
    const [x, y] = at(pose), wide = place.view * side;
    pen.lineWidth = 4.5;
    pen.strokeStyle = colours.halo;
    pen.strokeRect(x - wide / 2, y - wide / 2, wide, wide);
    pen.lineWidth = 2.5;
    pen.strokeStyle = colour;
    pen.strokeRect(x - wide / 2, y - wide / 2, wide, wide);
  };
  const agent = (pose, colour, size) => (place.view ? frame(pose, colour) : heading(pose, colour, size));
  (now.recalled || []).map((number, i) => [number, i]).reverse().forEach(([number, i]) => {  // the nearest on top
    const moment = moments[number];
    if (!moment?.here) return;
    const bright = lit === number;
    dot(moment.here, bright ? 10 : 7.5, colours.recalled, bright ? colours.ink : colours.halo, bright ? 2.5 : 1.5);
    pen.fillStyle = colours.card;
    pen.font = `600 ${bright ? 11 : 9.5}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(i + 1, ...at(moment.here));
  });
  if (lit !== null && !(now.recalled || []).includes(lit) && moments[lit]?.here) dot(moments[lit].here, 6, colours.dot, colours.ink, 2.5);
  if (truth && now.true) agent(now.true, colours.true, Math.max(13, side / 26));
  if (now.here) agent(now.here, now.dream ? colours.dreamt : colours.inferred, Math.max(10, side / 34));

  if (way) {
    const [x, y] = at(way.goal);
    pen.lineWidth = 3;
    pen.strokeStyle = colours.ink;
    pen.beginPath();
    pen.arc(x, y, 8, 0, 7);
    pen.moveTo(x - 12, y); pen.lineTo(x + 12, y);
    pen.moveTo(x, y - 12); pen.lineTo(x, y + 12);
    pen.stroke();
  }
  (found || []).forEach((spot, i) => {
    const [x, y] = at(spot.at);
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.arc(x, y - 17, 9, 0.78, 2.36, true);
    pen.closePath();
    pen.fillStyle = colours.true;
    pen.fill();
    pen.strokeStyle = colours.halo;
    pen.stroke();
    pen.fillStyle = colours.card;
    pen.font = "700 11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("ABC"[i], x, y - 17);
  });
}

// One quantity over the timeline; gaps where it is not known.
export function drawLine(canvas, values, cursor, least, colour, colours) {
  const pen = sharp(canvas), width = canvas.clientWidth, height = canvas.clientHeight;
  const known = values.filter((value) => value !== null && value !== undefined);
  const top = Math.max(least, ...known) * 1.08;
  const span = Math.max(1, values.length - 1);
  const x = (i) => 2 + (i / span) * (width - 4), y = (value) => height - 3 - (value / top) * (height - 14);
  pen.fillStyle = colours.soft;
  pen.font = "10px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.fillText(top >= 10 ? Math.round(top) : top.toFixed(1), width - 1, 9);
  pen.strokeStyle = colours.rule;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(0, 12.5); pen.lineTo(width, 12.5);
  pen.moveTo(x(cursor), 12); pen.lineTo(x(cursor), height);
  pen.stroke();
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  pen.lineJoin = "round";
  pen.beginPath();
  let down = false;
  values.forEach((value, i) => {
    if (value === null || value === undefined) { down = false; return; }
    if (down) pen.lineTo(x(i), y(value));
    else pen.moveTo(x(i), y(value));
    down = true;
  });
  pen.stroke();
  const now = values[cursor];
  if (now !== null && now !== undefined) {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(x(cursor), y(now), 3, 0, 7);
    pen.fill();
  }
}

export function drawBand(canvas, moments, colours) {
  const pen = sharp(canvas), width = canvas.clientWidth, height = canvas.clientHeight;
  const each = width / Math.max(1, moments.length);
  moments.forEach((moment, i) => {
    pen.fillStyle = moment.dream ? colours.dreamt : colours.inferred;
    pen.fillRect(i * each, 0, each + 0.5, height);
  });
}
