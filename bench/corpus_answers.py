"""Questions to the corpus whose answers are known: speech that is read or made, text that is drawn, real photographs.

Each takes the models that answer it by role, and the places of files; it gives what was found and what is true. The
recording is one that a package carries; espeak-ng, Pillow and scikit-image are needed by those that make speech, draw
text or show a photograph, and a question whose means are missing is not asked.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import wave
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Model = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
Models = Mapping[str, Model]
Places = Mapping[str, Path]
Answer = Callable[[Models, Places], tuple[str, str]]

RATE = 16000
"""Samples a second that models of speech take."""
_MOST_TOKENS = 60


class NotAsked(Exception):
    """A question cannot be asked on this machine; the text says what is missing."""


def needed(name: str, package: str) -> Any:
    """An optional package."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotAsked(f"needs the package {package}") from error


def transcript(models: Models, places: Places) -> tuple[str, str]:
    """Greedy decoding with a cache of keys and values, which the first step fills."""
    audio = recording(places["recording"])
    [hidden] = models["encoder"]({"input_values": audio[None]})
    names = [
        f"past_key_values.{n}.{of}.{part}"
        for n in range(6)
        for of in ("decoder", "encoder")
        for part in ("key", "value")
    ]
    past = {name: np.zeros((1, 8, 1, 36), np.float32) for name in names}
    tokens = [1]
    while len(tokens) < _MOST_TOKENS:
        is_first = len(tokens) == 1
        inputs = {
            "input_ids": np.array([tokens[-1:]], np.int64),
            "encoder_hidden_states": hidden,
            "use_cache_branch": np.array([not is_first]),
            **past,
        }
        logits, *present = models["decoder"](inputs)
        # What the encoder gave does not change: later steps give it back empty.
        past |= {name: array for name, array in zip(names, present, strict=True) if is_first or "decoder" in name}
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] == 2:
            break
    vocabulary = json.loads(places["tokenizer"].read_text(encoding="utf-8"))["model"]["vocab"]
    pieces = {number: piece for piece, number in vocabulary.items()}
    text = "".join(pieces[token] for token in tokens[1:-1]).replace("\u2581", " ")
    said = "ever tried ever failed no matter try again fail again fail better"
    return words(text), said


def words(text: str) -> str:
    """Words alone: whether a pause is a comma or a full stop is a matter of taste."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def voice(models: Models, places: Places) -> tuple[str, str]:
    """Window by window, each with the end of the last one before it and the state that it left."""

    def heard(audio: np.ndarray) -> float:
        state, context = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
        chances = []
        for window in windows(audio, 512, 512):
            inputs = {"input": np.concatenate([context, window])[None], "state": state, "sr": np.array(RATE, np.int64)}
            chance, state = models["model"](inputs)
            context = window[-64:]
            chances.append(float(chance[0, 0]))
        return float(np.mean(np.array(chances) > 0.5))

    return _voice_and_noise(heard(recording(places["recording"])), heard(noise()))


def voice_sequence(models: Models, places: Places) -> tuple[str, str]:
    """All windows of a recording in one call."""

    def heard(audio: np.ndarray) -> float:
        state = np.zeros((1, 1, 128), np.float32)
        inputs = {"input": np.stack([*windows(audio, 576, 512)]), "h": state, "c": state}
        return float(np.mean(models["model"](inputs)[0] > 0.5))

    return _voice_and_noise(heard(recording(places["recording"])), heard(noise()))


def _voice_and_noise(voice_share: float, noise_share: float) -> tuple[str, str]:
    def word(share: float) -> str:
        return "yes" if share > 0.4 else "no" if share < 0.05 else f"in {share:.0%} of it"

    return f"voice: {word(voice_share)}, noise: {word(noise_share)}", "voice: yes, noise: no"


def keyword_of(line: str, name: str) -> Answer:
    """Whether a line is heard where it is said, and not in another one; `name` is the small network's input."""

    def asked(models: Models, places: Places) -> tuple[str, str]:
        found = [text for text in (line, "What a fine day it is") if hears(models, name, text)]
        return str(found), str([line])

    return asked


def hears(models: Models, name: str, text: str) -> bool:
    """Spectrogram, embeddings of windows of it, and a small network that looks at the last sixteen."""
    silence = np.zeros(RATE, np.float32)
    audio = np.concatenate([silence, spoken(text), silence]) * 32767
    [bands] = models["spectrogram"]({"input": audio[None].astype(np.float32)})
    frames = bands.reshape(-1, 32) / 10 + 2
    stack = np.stack([frames[at : at + 76] for at in range(0, len(frames) - 75, 8)])[..., None]
    features = models["embedding"]({"input_1": stack.astype(np.float32)})[0].reshape(-1, 96)
    scores = [models["keyword"]({name: part[None]})[0].item() for part in windows(features, 16, 1)]
    return bool(max(scores) > 0.5)


def file_type(models: Models, places: Places) -> tuple[str, str]:
    """The first and the last kilobyte of a file, without the space around it."""
    labels = json.loads(places["labels"].read_text(encoding="utf-8"))["target_labels_space"]
    content = Path(__file__).read_bytes().strip()
    ends = np.frombuffer(content[:1024] + content[-1024:], np.uint8).astype(np.int32)
    [scores] = models["model"]({"bytes": ends[None]})
    return labels[int(scores[0].argmax())], "python"


def note(models: Models, places: Places) -> tuple[str, str]:
    """Two seconds of A4 with harmonics; notes are counted from A0."""
    times = np.arange(43844) / 22050
    tone = sum(np.sin(2 * np.pi * 440 * k * times) / k for k in (1, 2, 3, 4)) * 0.2
    _, notes, _ = models["model"]({"serving_default_input_2:0": np.asarray(tone, np.float32)[None, :, None]})
    names = ("A", "A#", "B", "C", "C#", "D", "D#", "E", "F", "F#", "G", "G#")
    place = int(notes[0].mean(axis=0).argmax())
    return f"{names[place % 12]}{(place + 9) // 12}", "A4"


def pitch(models: Models, places: Places) -> tuple[str, str]:
    """A second of a tone with harmonics, to five hertz."""
    times = np.arange(RATE) / RATE
    tone = np.asarray(sum(np.sin(2 * np.pi * 220 * k * times) / k for k in (1, 2, 3)) * 0.3, np.float32)
    bounds = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    heights, _ = models["model"]({"audio": tone[None], **bounds})
    return str(5 * round(float(np.median(heights)) / 5)), "220"


def resampled_from(rate: int) -> Answer:
    """A second of a tone of 440 Hz at some rate: the same tone at the models' rate, a second of it."""

    def asked(models: Models, places: Places) -> tuple[str, str]:
        tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
        audio, length = models["model"]({"waveforms": tone[None], "waveforms_lens": np.array([rate], np.int64)})
        # A second has as many turns as hertz.
        height = int(np.abs(np.fft.rfft(audio[0, :RATE])).argmax())
        return f"{height} Hz, {int(length[0])} samples", f"440 Hz, {RATE} samples"

    return asked


def upright(models: Models, places: Places) -> tuple[str, str]:
    """A drawn line as it is, and turned upside down."""
    pixels = drawn("Tilewright 2026", (192, 48), (4, 10), 22)
    kinds = [int(models["model"]({"x": image})[0].argmax()) for image in (pixels, pixels[:, :, ::-1, ::-1].copy())]
    return str(kinds), str([0, 1])


def text(models: Models, places: Places) -> tuple[str, str]:
    """A drawn line, read by connectionist temporal classification: repeated and blank letters are dropped."""
    onnx = needed("onnx", "onnx")
    line = "Tilewright 2026"
    pixels = drawn(line, (320, 48), (8, 6), 30)
    [chances] = models["model"]({"x": pixels})
    properties = {item.key: item.value for item in onnx.load(places["model"]).metadata_props}
    letters = ["", *properties["character"].splitlines(), " "]
    best = chances[0].argmax(axis=1)
    changes = [int(one) for at, one in enumerate(best) if at == 0 or one != best[at - 1]]
    return "".join(letters[place] for place in changes).strip(), line


def text_place(models: Models, places: Places) -> tuple[str, str]:
    """The map of chances that a pixel belongs to text, in its four quarters."""
    pixels = drawn("Tilewright", (640, 640), (360, 420), 36)
    [[[chances]]] = models["model"]({"x": pixels})
    quarters = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
    half = chances.shape[0] // 2
    found = [
        name
        for name, (row, column) in quarters.items()
        if (chances[row * half :, column * half :][:half, :half] > 0.5).sum() > 500
    ]
    return ", ".join(found), "bottom right"


def face(models: Models, places: Places) -> tuple[str, str]:
    """The surest box of a detector of the YOLO family; its second class is a woman's face."""
    pixels = photograph(320).transpose(2, 0, 1)[None].astype(np.float32) / 255
    [boxes] = models["model"]({"images": pixels})
    scores = boxes[0, 4:]
    kind, place = np.unravel_index(int(scores.argmax()), scores.shape)
    across, down = boxes[0, :2, place]
    # The astronaut's face is right of the middle of the photograph's left half, in its upper third.
    is_there = 100 < across < 180 and 30 < down < 110
    return f"class {kind}{'' if is_there else f' at {across:.0f}, {down:.0f}'}", "class 1"


def safe(models: Models, places: Places) -> tuple[str, str]:
    """The chance that a photograph should not be shown."""
    blue_green_red = photograph(224)[..., ::-1].astype(np.float32) - np.array([104, 117, 123], np.float32)
    [chances] = models["model"]({"input:0": blue_green_red[None]})
    return ("yes" if chances[0, 1] < 0.2 else f"no: {chances[0, 1]:.2f}"), "yes"


def foreground(models: Models, places: Places) -> tuple[str, str]:
    """The mask of the person, at her suit and at the corner where the background is."""
    pixels = (photograph(1024).transpose(2, 0, 1)[None].astype(np.float32) - 128) / 256
    mask = models["model"]({"input": pixels})[0][0, 0]
    places_of = {"suit": mask[700:800, 350:450].mean(), "corner": mask[:80, -80:].mean()}
    return str([name for name, share in places_of.items() if share > 0.5]), str(["suit"])


def watermark(models: Models, places: Places) -> tuple[str, str]:
    """Bits that one network hides in an image, and another finds in its bytes."""
    bits = np.random.default_rng(1).integers(0, 2, 32)
    frame = photograph(384).transpose(2, 0, 1)[None, :, None].astype(np.float32) / 127.5 - 1
    [marked] = models["encoder"]({"frame": frame, "data": bits[None].astype(np.float32)})
    stored = np.clip((marked + 1) * 127.5, 0, 255).astype(np.uint8)
    [found] = models["decoder"]({"frame": stored.astype(np.float32) / 127.5 - 1})
    return "".join("1" if chance > 0.5 else "0" for chance in found[0]), "".join(map(str, bits))


ANSWERS: dict[str, Answer] = {
    "transcript": transcript,
    "voice": voice,
    "voice_sequence": voice_sequence,
    "voice_v5": voice,
    "voice_without_if": voice,
    "keyword": keyword_of("Hey Jarvis", "x.1"),
    "keyword_alexa": keyword_of("Alexa", "onnx::Flatten_0"),
    "file_type": file_type,
    "note": note,
    "pitch": pitch,
    "resampled_48": resampled_from(48000),
    "resampled_22": resampled_from(22050),
    "text": text,
    "text_v4": text,
    "upright": upright,
    "text_place": text_place,
    "text_place_v3": text_place,
    "face": face,
    "safe": safe,
    "foreground": foreground,
    "foreground_small": foreground,
    "watermark": watermark,
}


def windows(array: np.ndarray, size: int, step: int) -> Iterator[np.ndarray]:
    """Parts of an array that are full."""
    for start in range(0, len(array) - size + 1, step):
        yield array[start : start + size]


def recording(path: Path) -> np.ndarray:
    """A recording in the models' rate."""
    return samples(path.read_bytes())


def samples(content: bytes) -> np.ndarray:
    """What a WAV file of 16 bits holds, in the models' rate, between -1 and 1."""
    with wave.open(io.BytesIO(content)) as stream:
        rate, channels = stream.getframerate(), stream.getnchannels()
        # A file that was written into a pipe does not know its length: the frames that are there count.
        data = stream.readframes(len(content))
    audio = np.frombuffer(data[: len(data) // 2 * 2], np.int16)[::channels].astype(np.float32) / 32768
    places = np.arange(0, len(audio) - 1, rate / RATE)
    return np.interp(places, np.arange(len(audio)), audio).astype(np.float32)


def spoken(line: str) -> np.ndarray:
    """A line that espeak-ng says."""
    if shutil.which("espeak-ng") is None:
        raise NotAsked("needs espeak-ng")
    said = subprocess.run(["espeak-ng", "-v", "en-us", "-s", "130", "--stdout", line], capture_output=True, check=True)
    return samples(said.stdout)


def noise() -> np.ndarray:
    """Three seconds of white noise."""
    return (np.random.default_rng(0).standard_normal(3 * RATE) * 0.05).astype(np.float32)


def drawn(line: str, size: tuple[int, int], place: tuple[int, int], height: int) -> np.ndarray:
    """Black text on white, as the models of PaddleOCR take images: channels first, between -1 and 1."""
    images, drawing, fonts = (needed(f"PIL.{name}", "pillow") for name in ("Image", "ImageDraw", "ImageFont"))
    image = images.new("RGB", size, "white")
    drawing.Draw(image).text(place, line, fill="black", font=fonts.load_default(height))
    return (np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255 - 0.5) / 0.5


def photograph(size: int) -> np.ndarray:
    """Eileen Collins in her suit, from scikit-image, as a square of bytes."""
    data, transform = needed("skimage.data", "scikit-image"), needed("skimage.transform", "scikit-image")
    pixels = transform.resize(data.astronaut(), (size, size), anti_aliasing=True, preserve_range=True)
    return np.asarray(pixels, np.uint8)
